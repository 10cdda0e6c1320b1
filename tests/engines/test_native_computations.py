"""What the native library computes by itself: functions, single steps, advantages, and calls of Python."""

import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import collected
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy

from helpers import BOX, noise_envs, update
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.engines.native.collector import MANY_ENVS, NativeCollector, compute_returns_and_advantage
from sb3_ppo_variants.engines.native.networks import Architecture, arrays_of, compute_once
from sb3_ppo_variants.engines.native.update import PythonFunctions
from sb3_ppo_variants.processes import Processes

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float32)
TYPES = {np.float32: th.float32, np.float64: th.float64}


def computed(policy: Any, features: np.ndarray, noise: np.ndarray, **fields: Any) -> dict[str, np.ndarray]:
    """Return what one call of the library computes in some states."""
    n, dtype, size = len(features), features.dtype, noise.shape[1]
    shapes = {"outputs": (n, size), "actions": (n, size), "log_probs": (n,), "values": (n, 1)}
    results = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
    fields = {**results, "features": features, "noise": noise, "rows": n, **fields}
    networks = Architecture(policy, arrays_of(dict(policy.named_parameters()))).structure
    compute_once(networks, dtype, **fields, action_size=size, noise_size=size)
    return results


@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("dtype", TYPES)
def test_the_hyperbolic_tangent(dtype: Any) -> None:
    """The error is at most 5 units in the last place, and NaN and infinity are handled correctly."""
    policy = ActorCriticPolicy(NUMBER, spaces.MultiBinary(1), lambda _: 1e-3, net_arch=[1]).to(TYPES[dtype])
    for name, parameter in policy.named_parameters():
        parameter.data.fill_(float(name.endswith("weight")))

    def hyperbolic_tangent(x: np.ndarray) -> np.ndarray:
        return computed(policy, x[:, None], np.ones((len(x), 1), dtype))["values"][:, 0]

    numbers = np.geomspace(1e-30, 1e4, 20001)
    x = np.concatenate([-numbers[::-1], [0.0], numbers]).astype(dtype)
    found = hyperbolic_tangent(x)
    wanted = np.tanh(x.astype(np.longdouble))
    assert (np.abs(found - wanted) <= 5 * np.spacing(np.abs(wanted).astype(dtype))).all()
    assert np.abs(found).max() == 1
    special = hyperbolic_tangent(np.array([np.nan, np.inf, -np.inf], dtype))
    np.testing.assert_array_equal(special, np.array([np.nan, 1, -1], dtype))


@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("dtype", TYPES)
def test_the_exponential_function(dtype: Any) -> None:
    """The error of a standard deviation, the exponential of a parameter, is at most 2 units in the last place."""
    x = np.append(np.linspace(-86.5, 88.7, 20001), [-1000.0, -0.0]).astype(dtype)
    box = spaces.Box(-1, 1, (len(x),), np.float32)
    policy: Any = ActorCriticPolicy(NUMBER, box, lambda _: 1e-3, net_arch=[]).to(TYPES[dtype])
    policy.action_net.weight.data.zero_()
    policy.log_std.data = th.from_numpy(x.copy())
    found = computed(policy, np.zeros((1, 1), dtype), np.ones((1, len(x)), dtype))["actions"][0]
    wanted = np.exp(x.astype(np.longdouble))
    assert (np.abs(found - wanted) <= 2 * np.spacing(wanted.astype(dtype))).all()
    assert found[-2:].tolist() == [0, 1]


@pytest.fixture
def model(natively: None) -> Any:
    """Create a model that the library supports, with 3-dimensional observations and 2-dimensional actions."""
    return PPOClip("MlpPolicy", noise_envs(BOX), n_steps=8, batch_size=8)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_more_environments_than_states_at_a_time(model: Any) -> None:
    """Acting on all environments at once gives the same results as acting on some of them."""
    features, noise = normal(300, 3), normal(300, 2)
    together = computed(model.policy, features, noise)
    with th.no_grad():
        means = model.policy.get_distribution(th.from_numpy(features)).distribution.mean
        wanted = model.policy.evaluate_actions(th.from_numpy(features), th.from_numpy(together["actions"]))
    np.testing.assert_allclose(together["outputs"], means.numpy(), atol=1e-6)
    np.testing.assert_allclose(together["values"], wanted[0].numpy(), atol=1e-6)
    np.testing.assert_allclose(together["log_probs"], wanted[1].numpy(), rtol=1e-5, atol=1e-5)
    for rows in (slice(0, 1), slice(120, 140), slice(299, 300)):
        alone = computed(model.policy, features[rows], noise[rows])
        for name, array in together.items():
            np.testing.assert_allclose(array[rows], alone[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_envs", [1, 5, 200])
def test_steps_stay_where_they_were_written(model: Any, n_envs: int) -> None:
    features, noise = normal(4, n_envs, 3), normal(4, n_envs, 2)
    low, high = np.array([-0.5, -2.0], np.float32), np.array([0.25, -1.0], np.float32)
    shapes = {"outputs": (2,), "actions": (2,), "clipped": (2,), "log_probs": (), "values": (1,)}
    together = {name: np.zeros((4, n_envs, *shape), np.float32) for name, shape in shapes.items()}
    for step in (2, 0, 3, 1):
        computed(model.policy, features[step], noise[step], step=step, low=low, high=high, **together)
    for step in range(4):
        for name, array in computed(model.policy, features[step], noise[step]).items():
            np.testing.assert_array_equal(together[name][step], array)
    assert np.any(together["clipped"] != together["actions"])
    np.testing.assert_array_equal(together["clipped"], np.clip(together["actions"], low, high))


def test_other_steps_and_features_are_refused(model: Any) -> None:
    collector = NativeCollector(model, model._plan(), model.rollout_buffer, 8)
    with pytest.raises(IndexError):
        collector.act(8, normal(2, 3))
    for wrong in (normal(1, 3), normal(2, 4)):
        with pytest.raises(ValueError, match=r"features: float32 of shape .*; the library takes float32 of \(2, 3\)"):
            collector.act(0, wrong)


@pytest.mark.parametrize("n_envs", [1, 3, 64])
@pytest.mark.parametrize("n_steps", [1, 40])
def test_advantages_are_those_of_the_buffer(n_steps: int, n_envs: int) -> None:
    rng = np.random.default_rng(0)
    buffers = [RolloutBuffer(n_steps, NUMBER, NUMBER, "cpu", 0.9, 0.97, n_envs) for _ in range(2)]
    rewards, values = rng.normal(size=(2, n_steps, n_envs)).astype(np.float32)
    starts, (last_values,) = rng.random((n_steps, n_envs)) < 0.2, rng.normal(size=(1, n_envs)).astype(np.float32)
    dones = np.arange(n_envs) == 0
    for buffer in buffers:
        buffer.rewards[:], buffer.values[:], buffer.episode_starts[:] = rewards, values, starts
    buffers[0].compute_returns_and_advantage(th.as_tensor(last_values), dones)
    compute_returns_and_advantage(buffers[1], last_values, dones)
    for name in ("advantages", "returns"):
        wanted, found = (getattr(buffer, name) for buffer in buffers)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert found.dtype == np.float32
        assert n_envs < MANY_ENVS or np.array_equal(found, wanted)


@pytest.mark.usefixtures("natively")
def test_passes_that_end_early_leave_the_generator_as_the_reference(double_precision: Callable[[Any], None]) -> None:
    model = collected(PPOClip, BOX, target_kl=2e-3, learning_rate=3e-3)
    double_precision(model)
    following = []
    for fast in (False, True):
        passes = update(model, fast)._n_updates
        following.append((passes, np.random.random()))
    assert following[0] == following[1] and 1 <= passes < model.n_epochs


@pytest.mark.usefixtures("natively")
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("batch_size", [10**12, sys.maxsize])
def test_a_batch_larger_than_the_rollout_is_the_rollout(batch_size: int) -> None:
    model = collected(PPOClip, BOX)
    model.batch_size = model.n_steps * model.n_envs
    wanted = update(model, fast=True).get_parameters()
    model.batch_size = batch_size
    th.testing.assert_close(update(model, fast=True).get_parameters(), wanted, rtol=0, atol=0)


class Two(Processes):
    """Two processes that always have the same numbers."""

    size = 2

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        return th.stack([tensor, tensor])


def interrupted(_: PythonFunctions) -> None:
    """Behave as if an interrupt arrived when the library calls back, which Python notices before the first line."""
    raise KeyboardInterrupt


@pytest.mark.usefixtures("natively")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_before_a_callback_ends_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    model = collected(PPOClip, BOX)
    model.fast = True
    before = deepcopy(model.policy.state_dict())
    monkeypatch.setattr(PPOClip, "processes", Two())
    monkeypatch.setattr(PythonFunctions, "_average_gradient", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.train()
    th.testing.assert_close(model.policy.state_dict(), before, rtol=0, atol=0)
    assert model._n_updates == 0
