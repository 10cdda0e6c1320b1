"""Rollouts of the fast path match SB3's, with actions from the same distribution."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from engine_models import MODELS, assert_records_the_policy, rolled_out
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from helpers import (
    ACTION_SPACES,
    BOX,
    MIXED,
    VECTOR,
    assert_same_weights,
    collect,
    noise_envs,
    policy_for,
    small,
)
from sb3_ppo_variants import PPOClip

pytestmark = pytest.mark.usefixtures("natively")
N_STEPS = 40
SPACES = {
    **ACTION_SPACES,
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "double": spaces.Box(-1, 1, (2,), np.float64),
}


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith(("gSDE", "masked"))])
def test_values_and_log_probabilities_are_those_of_the_policy(name: str, n_envs: int) -> None:
    arguments = {name: value for name, value in MODELS[name].items() if name != "policy"}
    env = noise_envs(arguments.pop("action_space"), arguments.pop("observation_space", VECTOR), n_envs=n_envs)
    assert_records_the_policy(rolled_out(env, fast=True, n_rollouts=2, **arguments), atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sde_sample_freq", [-1, 1, 7])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("sde", [{}, {"squash_output": True, "net_arch": [4]}, {"full_std": False, "use_expln": True}])
def test_gsde_acts_as_the_reference(sde: dict[str, Any], n_envs: int, sde_sample_freq: int) -> None:
    arguments: dict[str, Any] = {"use_sde": True, "sde_sample_freq": sde_sample_freq, "policy_kwargs": sde}
    space = spaces.Box(np.array([-1, -3], np.float32), np.array([2, 5], np.float32))
    wanted, got = (
        rolled_out(noise_envs(space, n_envs=n_envs), n_rollouts=2, fast=fast, **arguments) for fast in (False, True)
    )
    for name in ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "returns"):
        theirs, ours = (getattr(model.rollout_buffer, name) for model in (wanted, got))
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, name
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, err_msg=name)
    for theirs, ours in zip(wanted.old_policy.parameters, got.old_policy.parameters, strict=True):
        th.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class ResetsNoise(BaseCallback):
    def _on_step(self) -> bool:
        policy: Any = self.model.policy
        if self.n_calls == 5:
            policy.reset_noise(3)
        return True


class ChangesFrequency(BaseCallback):
    def _on_step(self) -> bool:
        self.model.sde_sample_freq = 2
        return True


@pytest.mark.parametrize("callback", [ResetsNoise, ChangesFrequency])
def test_noise_that_a_callback_changes_takes_effect(callback: Any) -> None:
    acted = [
        rolled_out(noise_envs(SPACES["Box"], n_envs=3), callback(), fast=fast, use_sde=True).rollout_buffer.actions
        for fast in (False, True)
    ]
    np.testing.assert_allclose(acted[1], acted[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name, n_envs", [("Discrete", 3), ("MultiBinary", 3), ("MultiDiscrete", 1)])
def test_these_actions_are_those_of_the_reference(name: str, n_envs: int) -> None:
    acted = [
        rolled_out(noise_envs(SPACES[name], n_envs=n_envs), n_rollouts=2, fast=fast).rollout_buffer.actions
        for fast in (False, True)
    ]
    assert len(np.unique(acted[0])) > 1
    np.testing.assert_array_equal(acted[1], acted[0])


class SameState(gym.Env):
    """Always returns the same observation."""

    observation_space = VECTOR
    seen = np.array([0.5, -0.3, 0.8], np.float32)

    def __init__(self, action_space: spaces.Space):
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.reset()[0], 0.0, False, False, {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ACTION_SPACES)
@pytest.mark.parametrize("n_envs", [1, 4])
def test_actions_have_the_distribution_of_the_policy(n_envs: int, name: str) -> None:
    stats = pytest.importorskip("scipy.stats")
    env = make_vec_env(lambda: SameState(ACTION_SPACES[name]), n_envs=n_envs)
    n_samples = 8000
    model = rolled_out(env, fast=True, n_steps=n_samples // n_envs)
    actions = model.rollout_buffer.actions.reshape(n_samples, -1)
    policy_distribution = model.policy.get_distribution(th.as_tensor(SameState.seen[None])).distribution
    parts = policy_distribution if isinstance(policy_distribution, list) else [policy_distribution]
    for i, column in enumerate(actions.T):
        if name == "Box":
            mean, std = parts[0].mean[0, i].item(), parts[0].stddev[0, i].item()
            assert stats.kstest(column, stats.norm(mean, std).cdf).pvalue > 1e-3
        else:
            p = parts[0].probs[0, i].item() if name == "MultiBinary" else None
            probabilities = [1 - p, p] if p is not None else parts[i].probs[0].tolist()
            counts = np.bincount(column.astype(int), minlength=len(probabilities))
            assert stats.chisquare(counts, np.array(probabilities) / sum(probabilities) * n_samples).pvalue > 1e-3
    # Actions are independent between steps and between environments.
    assert abs(np.corrcoef(actions[:-1, 0], actions[1:, 0])[0, 1]) < 0.05


def deterministic(model_class: Any, make_env: Callable[[], VecEnv], **arguments: Any) -> Any:
    """Return a model after two rollouts with a nearly deterministic policy, which acts the same on both paths."""
    env = make_env()
    model = model_class(policy_for(env), env, n_steps=N_STEPS, batch_size=20, seed=2, device="cpu", **arguments)
    model.policy.log_std.data.fill_(-20.0)
    _, callback = model._setup_learn(10**6)
    for _ in range(2):
        model.collect_rollouts(env, callback, model.rollout_buffer, N_STEPS)
    return model


def test_dictionaries() -> None:
    def make_env() -> VecEnv:
        return noise_envs(BOX, MIXED, n_envs=3)

    theirs, ours = deterministic(PPO, make_env), deterministic(PPOClip, make_env, fast=True)
    for key in ("a", "b"):
        np.testing.assert_array_equal(ours.rollout_buffer.observations[key], theirs.rollout_buffer.observations[key])
    for name in ("actions", "rewards", "returns"):
        np.testing.assert_allclose(
            getattr(ours.rollout_buffer, name), getattr(theirs.rollout_buffer, name), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("normalized", [False, True])
def test_the_buffer_is_that_of_sb3(normalized: bool) -> None:
    """Episodes are truncated after 7 steps, so the values of their last states are added to the rewards."""

    def make_env() -> VecEnv:
        env = noise_envs(BOX, n_envs=3)
        return VecNormalize(env) if normalized else env

    theirs, ours = deterministic(PPO, make_env), deterministic(PPOClip, make_env, fast=True)
    assert ours.num_timesteps == theirs.num_timesteps == 2 * 3 * N_STEPS
    assert list(ours.ep_info_buffer) == list(theirs.ep_info_buffer)
    np.testing.assert_allclose(ours._last_obs, theirs._last_obs, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ours._last_episode_starts, theirs._last_episode_starts)
    assert ours.rollout_buffer.full and ours.rollout_buffer.pos == N_STEPS
    for name in ("observations", "actions", "rewards", "episode_starts", "values", "advantages", "returns"):
        their_array, our_array = getattr(theirs.rollout_buffer, name), getattr(ours.rollout_buffer, name)
        assert our_array.dtype == their_array.dtype and our_array.shape == their_array.shape, name
        np.testing.assert_allclose(our_array, their_array, rtol=1e-4, atol=1e-4, err_msg=name)


class Names(BaseCallback):
    """Records the kinds of values in ``locals``, at a step and at the end of a rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.at_step: dict[str, tuple[Any, ...]] = {}
        self.at_end: dict[str, tuple[Any, ...]] = {}

    def _kinds(self) -> dict[str, tuple[Any, ...]]:
        return {
            name: (type(value), getattr(value, "shape", None), getattr(value, "dtype", None))
            for name, value in self.locals.items()
            if name != "self"
        }

    def _on_step(self) -> bool:
        self.at_step = self.at_step or self._kinds()
        return True

    def _on_rollout_end(self) -> None:
        self.at_end = self._kinds()


@pytest.mark.parametrize("name", SPACES)
def test_callbacks_find_the_same_names(name: str) -> None:
    seen = []
    for fast in (False, True):
        names = Names()
        rolled_out(noise_envs(SPACES[name], n_envs=3), names, fast=fast)
        seen.append((names.at_step, names.at_end))
    (step, end), (our_step, our_end) = seen
    assert our_step == step
    # These variables are left over from SB3's loop over finished episodes.
    assert {
        key: our_end.get(key) for key in end if key not in {"idx", "done", "terminal_obs", "terminal_value"}
    } == our_end


class ReadsDistributions(BaseCallback):
    """Compares the log-probabilities of a step with those of the distribution that the policy keeps, if it does."""

    def _on_training_start(self) -> None:
        self.model.predict(self.training_env.observation_space.sample()[None])
        self.errors: list[float] = []

    def _on_step(self) -> bool:
        policy: Any = self.model.policy
        observations, actions, expected = (th.as_tensor(self.locals[name]) for name in ("obs_tensor", *OF_STEP))
        kept = [policy.action_dist] if hasattr(policy.action_dist, "distribution") else []
        for each in (*kept, policy.get_distribution(observations)):
            self.errors.append((each.log_prob(actions) - expected).abs().max().item())
        vars(policy.action_dist).pop("distribution")
        return True


OF_STEP = ("actions", "log_probs")


@pytest.mark.parametrize("fast", [False, True])
def test_callbacks_find_no_distribution_of_another_state(fast: bool) -> None:
    callback = ReadsDistributions()
    rolled_out(noise_envs(BOX), callback, fast=fast)
    assert len(callback.errors) == N_STEPS * (1 if fast else 2) and max(callback.errors) < 1e-5


class DoublesRewards(BaseCallback):
    def _on_step(self) -> bool:
        self.locals["rewards"] *= 2
        return True


class ChangesPolicy(BaseCallback):
    def _on_step(self) -> bool:
        if self.n_calls == 5:
            policy: Any = self.model.policy
            policy.value_net.bias.data += 100.0
        return True


def test_what_a_callback_changes_takes_effect() -> None:
    plain, doubled = (rolled_out(noise_envs(BOX), c, fast=True) for c in (None, DoublesRewards()))
    alone = np.arange(N_STEPS) % 7 != 6  # At other steps, the reward includes the value of the last state.
    np.testing.assert_allclose(doubled.rollout_buffer.rewards[alone], 2 * plain.rollout_buffer.rewards[alone])
    values = rolled_out(noise_envs(BOX), ChangesPolicy(), fast=True).rollout_buffer.values
    assert values[:5].max() < 50 < values[5:].min()


class ReplacesObservations(BaseCallback):
    def _on_step(self) -> bool:
        model: Any = self.model
        model._last_obs = np.full_like(model._last_obs, self.n_calls)
        return True


@pytest.mark.parametrize(("cls", "arguments"), [(PPO, {}), (PPOClip, {"fast": False}), (PPOClip, {"fast": True})])
def test_observations_that_a_callback_replaces_are_stored(cls: Any, arguments: dict[str, Any]) -> None:
    model = cls("MlpPolicy", noise_envs(BOX), n_steps=4, batch_size=4, n_epochs=1, **arguments)
    model.learn(8, ReplacesObservations())
    # The paths store the rows in different orders.
    stored = np.sort(model.rollout_buffer.observations.reshape(8, 3), axis=0)
    assert stored.tolist() == [[n] * 3 for n in (1, 1, 2, 2, 3, 3, 4, 4)]


class Stops(BaseCallback):
    def _on_step(self) -> bool:
        return self.n_calls < 3


@pytest.mark.parametrize("fast", [False, True])
def test_a_callback_ends_training(fast: bool) -> None:
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=N_STEPS, batch_size=20, fast=fast)
    model.learn(1000, Stops())
    assert model.num_timesteps == 6
    assert model._n_updates == 0


def test_observations_that_are_not_finite_are_refused() -> None:
    env = noise_envs(BOX, spaces.Box(-1, 1, (3,), np.float32))
    env.envs[1].observation_space.sample = lambda: np.full(3, np.nan, np.float32)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="output of the policy network is not finite"):
        rolled_out(env, fast=True)


class Changed(VecEnvWrapper):
    """Changes the observations in a way that their values stay the same."""

    def __init__(self, venv: VecEnv, change: Callable[[Any], Any]):
        super().__init__(venv)
        self._change = change

    def reset(self) -> Any:
        return self._change(self.venv.reset())

    def step_wait(self) -> Any:
        observations, *others = self.venv.step_wait()
        return self._change(observations), *others


def not_aligned(observations: np.ndarray) -> np.ndarray:
    """Return a copy that begins one byte after where its numbers should."""
    found = np.zeros(observations.nbytes + 1, np.uint8)[1:].view(observations.dtype).reshape(observations.shape)
    found[...] = observations
    return found


@pytest.mark.parametrize(
    ("space", "change"),
    [
        (spaces.Discrete(5), lambda observations: observations.astype(np.float32)),
        (spaces.MultiDiscrete([3, 2]), lambda observations: observations.astype(np.float32)),
        (VECTOR, not_aligned),
    ],
    ids=["Discrete as floats", "MultiDiscrete as floats", "not aligned"],
)
def test_observations_of_another_form_are_those_of_the_space(space: Any, change: Any) -> None:
    models = [
        small(env=Changed(noise_envs(BOX, deepcopy(space)), how), fast=True).learn(64)
        for how in (change, lambda observations: observations)
    ]
    assert_same_weights(*models)


@pytest.mark.parametrize("std", [None, "state"])
def test_log_probabilities_are_those_of_the_rounded_actions(std: str | None) -> None:
    """With a deviation of e^-12 around 1, rounding moves an action by a hundredth of a deviation."""
    kwargs: dict[str, Any] = {"log_std_init": -12.0} if std is None else {"std": std}
    model = small(n_steps=64, policy_kwargs=kwargs, fast=True)
    with th.no_grad():
        net = model.policy.action_net
        net.weight.zero_()
        net.bias.fill_(1.0)
        if std is not None:
            net.bias[len(net.bias) // 2 :] = -12.0
    buffer = collect(model).rollout_buffer
    with th.no_grad():
        _, log_probs, _ = model.policy.evaluate_actions(
            *(th.as_tensor(buffer.swap_and_flatten(array)) for array in (buffer.observations, buffer.actions))
        )
    np.testing.assert_allclose(buffer.log_probs.T.ravel(), log_probs, rtol=1e-5)
