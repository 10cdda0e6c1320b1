"""The native library computes the same as the reference path; test_fast_update and test_fast_rollout test it too."""

import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import CASES, OBSERVATIONS, collected
from gymnasium import spaces

from helpers import BOX, noise_envs, update
from sb3_ppo_variants import (
    ApproximateKL,
    ClippedError,
    ExactKL,
    Huber,
    KLAdaptive,
    PPOClip,
    RatioDeviation,
    SeparateUpdates,
)
from sb3_ppo_variants.engines.native.actor import NativeActor
from sb3_ppo_variants.engines.native.distributions import Single
from sb3_ppo_variants.engines.native.networks import Architecture, StateDependence, run_acting, values_of
from sb3_ppo_variants.engines.native.update import Averages
from sb3_ppo_variants.processes import Processes

Double = Callable[[Any], None]
QUICK, ALL = 20, 1000


def hyperbolic_tangent(x: np.ndarray) -> np.ndarray:
    """Compute tanh with networks of one unit."""
    parameters = {"weight": np.ones((1, 1), x.dtype), "bias": np.zeros(1, x.dtype)}
    arrays = {f"{layer}.{name}": p for layer in ("hidden", "action_net", "value_net") for name, p in parameters.items()}
    layers = ["hidden", "action_net"], ["hidden", "value_net"]
    networks = Architecture(*layers, "TANH", Single("BERNOULLI", [1]), StateDependence(), 1).structure(arrays)
    return values_of(networks, x[:, None])[:, 0]


@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_hyperbolic_tangent(dtype: Any) -> None:
    """The error is at most 5 units in the last place, and NaN and infinity are handled correctly."""
    numbers = np.geomspace(1e-30, 1e4, 20001)
    x = np.concatenate([-numbers[::-1], [0.0], numbers]).astype(dtype)
    found = hyperbolic_tangent(x)
    wanted = np.tanh(x.astype(np.longdouble))
    assert (np.abs(found - wanted) <= 5 * np.spacing(np.abs(wanted).astype(dtype))).all()
    assert np.abs(found).max() == 1
    special = hyperbolic_tangent(np.array([np.nan, np.inf, -np.inf], dtype))
    np.testing.assert_array_equal(special, np.array([np.nan, 1, -1], dtype))


@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_function(dtype: Any) -> None:
    """The error of a standard deviation, the exponential of a parameter, is at most 2 units in the last place."""
    x = np.append(np.linspace(-86.5, 88.7, 20001), [-1000.0, -0.0]).astype(dtype)
    arrays = {"log_std": x, "action_net.weight": np.zeros((len(x), 1), dtype), "action_net.bias": np.zeros_like(x)}
    arrays |= {"value_net.weight": np.zeros((1, 1), dtype), "value_net.bias": np.zeros(1, dtype)}
    drawn = Single("GAUSSIAN", [len(x)])
    architecture = Architecture(["action_net"], ["value_net"], "TANH", drawn, StateDependence(), 1)
    found = acted(architecture, arrays, np.zeros((1, 1), dtype), np.ones((1, len(x)), dtype))["actions"][0]
    wanted = np.exp(x.astype(np.longdouble))
    assert (np.abs(found - wanted) <= 2 * np.spacing(wanted.astype(dtype))).all()
    assert found[-2:].tolist() == [0, 1]


def acted(
    architecture: Architecture, arrays: Any, features: np.ndarray, noise: np.ndarray, **fields: Any
) -> dict[str, np.ndarray]:
    """Return what one call of the library computes in some states."""
    n, dtype = len(features), features.dtype
    shapes: dict[str, tuple[int, ...]] = {
        "outputs": (n, architecture.drawn.outputs),
        "actions": (n, architecture.drawn.action_size),
    }
    shapes |= {"log_probs": (n,), "values": (n, 1)}
    results = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
    fields = {**results, "features": features, "noise": noise, "rows": n, **fields}
    sizes = {"action_size": architecture.drawn.action_size, "noise_size": architecture.drawn.outputs}
    run_acting(architecture.structure(arrays), dtype, **fields, **sizes)
    return results


def configuration(seed: int) -> tuple[Any, dict[str, Any]]:
    """Draw a random class and random arguments for :func:`collected`."""
    rng = np.random.default_rng(seed)
    name = rng.choice([*CASES])
    cls, arguments = CASES[name]
    widths = lambda: rng.choice([1, 3, 8, 17, 33], rng.integers(0, 4)).tolist()  # noqa: E731
    net_arch = widths() if rng.random() < 0.5 else {"pi": widths(), "vf": widths()}
    if rng.random() < 0.3:
        arguments = arguments | {"updates": SeparateUpdates(2, 3, value_max_grad_norm=float(rng.choice([0.1, np.inf])))}
    settings = {
        "action_space": rng.choice(
            np.array(
                [
                    spaces.Box(-1, 1, (int(rng.integers(1, 6)),), np.float32),
                    spaces.Discrete(int(rng.integers(2, 8))),
                    spaces.MultiDiscrete(rng.integers(2, 6, rng.integers(1, 5))),
                    spaces.MultiBinary(int(rng.integers(1, 6))),
                ],
                dtype=object,
            )
        ),
        "observation_space": rng.choice(
            np.array([spaces.Box(-1, 1, (int(rng.integers(1, 40)),)), *OBSERVATIONS.values()], dtype=object)
        ),
        "policy_kwargs": {"net_arch": net_arch, "activation_fn": [th.nn.Tanh, th.nn.ReLU][rng.integers(2)]},
        "n_epochs": int(rng.integers(1, 4)),
        "learning_rate": float(rng.choice([1e-4, 3e-3])),
        "target_kl": [None, 1e-4, 0.01][rng.integers(3)],
        "clip_range_vf": [None, 0.05][rng.integers(2)],
        "ent_coef": [0.0, 0.02][rng.integers(2)],
        "normalize_advantage": bool(rng.integers(2)),
        "max_grad_norm": float(rng.choice([0.05, 0.5, np.inf])),
    }
    if settings["target_kl"] is None:
        stop: Any = [ApproximateKL, ExactKL, RatioDeviation][rng.integers(3)]
        settings["stop"] = stop(float(rng.choice([1e-3, 0.03])), ["update", "epoch"][rng.integers(2)])
    if settings["clip_range_vf"] is None:
        settings["value_loss"] = [None, Huber(0.5), ClippedError(0.05, pessimistic=False)][rng.integers(3)]
    if rng.random() < 0.3:
        settings["learning_rate"] = KLAdaptive(desired_kl=1e-3, every="minibatch")
    return cls, settings | arguments


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("natively")
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize(
    "seed", [*range(QUICK), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(QUICK, ALL))]
)
def test_any_configuration_is_the_reference(seed: int, double_precision: Double) -> None:
    cls, settings = configuration(seed)
    settings["use_sde"] = seed % 4 == 0 and isinstance(settings["action_space"], spaces.Box)
    rng = np.random.default_rng(seed)
    policy = "MultiInputPolicy" if isinstance(settings["observation_space"], spaces.Dict) else "MlpPolicy"
    n_envs, n_steps = int(rng.integers(1, 5)), int(rng.integers(4, 100))
    model = collected(cls, policy=policy, n_envs=n_envs, n_steps=n_steps, **settings)
    rows = n_envs * n_steps
    model.batch_size = int(rng.choice([2, 7, 64, rows - 1, rows, 2 * rows]))
    if model.batch_size == 2:
        model.n_epochs = 1  # Over hundreds of steps, rounding errors may grow without bound.
    double_precision(model)
    if model.use_sde:
        with th.no_grad():  # Noise that requires gradients cannot be deep-copied.
            model.policy.reset_noise()
    reference, ours = update(model, False), update(model, True)
    assert ours._n_updates == reference._n_updates
    th.testing.assert_close(ours.get_parameters(), reference.get_parameters(), rtol=1e-5, atol=1e-9)
    for theirs, got in zip(reference.policy.parameters(), ours.policy.parameters(), strict=True):
        th.testing.assert_close(got.grad, theirs.grad, rtol=1e-4, atol=1e-9)
    logged = reference.logger.name_to_value
    assert ours.logger.name_to_value == pytest.approx(logged, rel=1e-5, abs=1e-7)


@pytest.mark.usefixtures("natively")
def test_passes_that_end_early_leave_the_generator_as_the_reference_does(double_precision: Double) -> None:
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


def interrupted(_: Averages) -> None:
    """Behave as if an interrupt arrived when the library calls back, which Python notices before the first line."""
    raise KeyboardInterrupt


@pytest.mark.usefixtures("natively")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_before_a_callback_ends_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    model = collected(PPOClip, BOX)
    model.fast = True
    before = deepcopy(model.policy.state_dict())
    monkeypatch.setattr(PPOClip, "processes", Two())
    monkeypatch.setattr(Averages, "_average_gradient", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.train()
    th.testing.assert_close(model.policy.state_dict(), before, rtol=0, atol=0)
    assert model._n_updates == 0


@pytest.fixture
def model(natively: None) -> Any:
    """Create a model that the library supports, with 3-dimensional observations and 2-dimensional actions."""
    return PPOClip("MlpPolicy", noise_envs(BOX), n_steps=8, batch_size=8)


def arrays_of(policy: Any) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy() for name, parameter in policy.named_parameters()}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_more_environments_than_states_at_a_time(model: Any) -> None:
    """Acting on all environments at once gives the same results as acting on some of them."""
    features, z, policy = normal(300, 3), normal(300, 2), model.policy
    architecture, arrays = Architecture.of(policy), arrays_of(policy)
    together = acted(architecture, arrays, features, z)
    with th.no_grad():
        means = policy.get_distribution(th.from_numpy(features)).distribution.mean
        wanted, wanted_log_probs, _ = policy.evaluate_actions(
            th.from_numpy(features), th.from_numpy(together["actions"])
        )
    np.testing.assert_allclose(together["outputs"], means.numpy(), atol=1e-6)
    np.testing.assert_allclose(together["values"], wanted.numpy(), atol=1e-6)
    np.testing.assert_allclose(together["log_probs"], wanted_log_probs.numpy(), rtol=1e-5, atol=1e-5)
    for rows in (slice(0, 1), slice(120, 140), slice(299, 300)):
        alone = acted(architecture, arrays, features[rows], z[rows])
        for name, array in together.items():
            np.testing.assert_allclose(array[rows], alone[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_envs", [1, 5, 200])
def test_steps_stay_where_they_were_written(model: Any, n_envs: int) -> None:
    features, z = normal(4, n_envs, 3), normal(4, n_envs, 2)
    low, high = np.array([-0.5, -2.0], np.float32), np.array([0.25, -1.0], np.float32)
    architecture, arrays = Architecture.of(model.policy), arrays_of(model.policy)
    shapes = {"outputs": (2,), "actions": (2,), "clipped": (2,), "log_probs": (), "values": (1,)}
    together = {name: np.zeros((4, n_envs, *shape), np.float32) for name, shape in shapes.items()}
    for step in (2, 0, 3, 1):
        acted(architecture, arrays, features[step], z[step], step=step, low=low, high=high, **together)
    for step in range(4):
        alone = acted(architecture, arrays, features[step], z[step])
        for name, array in alone.items():
            np.testing.assert_array_equal(together[name][step], array)
    assert np.any(together["clipped"] != together["actions"])
    np.testing.assert_array_equal(together["clipped"], np.clip(together["actions"], low, high))


def test_other_steps_and_features_are_refused(model: Any) -> None:
    actor = NativeActor(model, model._plan().kind, model.rollout_buffer, 8)
    with pytest.raises(IndexError):
        actor.act(8, normal(2, 3))
    with pytest.raises(ValueError, match=r"features: float32 of shape \(1, 3\); the library takes float32 of \(2, 3\)"):
        actor.act(0, normal(1, 3))
