"""Rollouts of the native engine are those of the reference, with actions from the same distributions."""

from collections.abc import Callable
from copy import deepcopy
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import DISTRIBUTIONS, FOUR, HYBRID, MODELS, assert_records_the_policy, masked_model, rolled_out
from gymnasium import spaces
from masked_envs import masked_envs
from resuming import exact
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from helpers import ACTION_SPACES, BOX, MIXED, VECTOR, assert_same_weights, collect, noise_envs, policy_for, small
from sb3_ppo_variants import PPOAdaptiveKL, PPOClip
from sb3_ppo_variants.policies.head import BoxActions

pytestmark = pytest.mark.usefixtures("natively")
N_STEPS = 40
# The bounds have no other use than to differ.
ASYMMETRIC = spaces.Box(np.array([-1, -3, 0.1], np.float32), np.array([2, 5, 0.3], np.float32))


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_rollout_records_the_policy(name: str, n_envs: int) -> None:
    arguments = {"fast": True, **MODELS[name]}
    space, observed = arguments.pop("action_space"), arguments.pop("observation_space", VECTOR)
    if arguments.pop("masked", False):
        env = masked_envs(space, observed, n_envs)
        arguments["policy"] = "MaskableMlpPolicy"
    else:
        env = noise_envs(space, n_envs=n_envs, observation_space=observed)
    assert_records_the_policy(rolled_out(env, n_rollouts=2, **arguments), atol=1e-4)


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


@pytest.mark.parametrize("name, n_envs", [("Discrete", 3), ("MultiBinary", 3), ("MultiDiscrete", 1)])
def test_these_actions_are_those_of_the_reference(name: str, n_envs: int) -> None:
    acted = [
        rolled_out(noise_envs(ACTION_SPACES[name], n_envs=n_envs), n_rollouts=2, fast=fast).rollout_buffer.actions
        for fast in (False, True)
    ]
    assert len(np.unique(acted[0])) > 1
    np.testing.assert_array_equal(acted[1], acted[0])


@pytest.mark.parametrize("name", ["Box", *DISTRIBUTIONS])
def test_continuous_actions_are_drawn_from_their_distribution(name: str) -> None:
    """Actions, as quantiles of the distributions that they were drawn from, are uniform and independent."""
    stats = pytest.importorskip("scipy.stats")
    # With a small standard deviation, rounding moves few squashed actions.
    narrow = {} if name == "beta" else {"log_std_init": -2.0}
    kwargs = DISTRIBUTIONS.get(name, {}) | narrow
    model = rolled_out(noise_envs(ASYMMETRIC, n_envs=3), fast=True, policy_kwargs=kwargs, n_steps=1000)
    actions = model.rollout_buffer.actions.swapaxes(0, 1).reshape(-1, 3).astype(float)
    first, second = (each.numpy() for each in model.old_policy.parameters)
    if name == "beta":
        quantiles = stats.beta.cdf((actions + 1) / 2, first, second)
    else:
        drawn = np.arctanh(np.clip(actions, -1 + 1e-7, 1 - 1e-7)) if "squashed" in name else actions
        quantiles = stats.norm.cdf(drawn, first, second)
    for column in quantiles.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    correlations = np.corrcoef(np.vstack([quantiles.T, np.roll(quantiles[:, 0], 1)]))
    np.testing.assert_allclose(correlations, np.eye(4), atol=0.08)


@pytest.mark.parametrize("distribution", [{}, {"distribution": "squashed_gaussian"}, {"std": "state"}])
def test_a_policy_in_double_precision_is_updated_with_the_actions_that_it_took(distribution: dict[str, str]) -> None:
    model = small(fast=True, learning_rate=0.0, policy_kwargs={"log_std_init": -22.0, **distribution})
    model.policy.double()
    model.learn(32)
    assert abs(model.logger.name_to_value["train/approx_kl"]) < 1e-9


def test_hybrid_actions_are_drawn_from_their_distributions() -> None:
    """Standardised actions have mean 0, variance 1 and no correlations, over all parts and from state to state."""
    model = rolled_out(noise_envs(FOUR, n_envs=3), fast=True, n_steps=2000)
    actions = model.rollout_buffer.actions.swapaxes(0, 1).reshape(-1, 7).astype(float)
    mean, std, choice, buttons, *dials = (each.numpy() for each in model.old_policy.parameters)
    columns = [*((actions[:, :2] - mean) / std).T]
    taken = [(actions[:, 2] == i, np.exp(choice[:, i])) for i in range(2)]
    taken += [(actions[:, 3 + i], 1 / (1 + np.exp(-buttons[:, i]))) for i in range(2)]
    taken += [
        (actions[:, 5 + i] == k, np.exp(dial[:, k])) for i, dial in enumerate(dials) for k in range(dial.shape[1] - 1)
    ]
    columns += [(each - p) / np.sqrt(p * (1 - p)) for each, p in taken]
    numbers = np.array([*columns, np.roll(columns[0], 1), np.roll(columns[2], 1)])
    for i, j in combinations_with_replacement(range(len(numbers)), 2):
        products = numbers[i] * numbers[j]
        if {i, j} not in ({2, 3}, {7, 8}, {7, 9}, {8, 9}):  # Categories of the same part exclude each other.
            assert abs(products.mean() - (i == j)) < 5 * products.std() / np.sqrt(len(actions)), (i, j)
    assert (np.abs(numbers.mean(axis=1)) < 5 / np.sqrt(len(actions))).all()


def test_masked_actions_are_drawn_from_the_masked_distribution() -> None:
    """Compare the frequencies of actions in one state with one mask."""
    model = masked_model(PPOClip, spaces.Discrete(5), fast=True, policy_kwargs={"net_arch": []})
    mask, state = np.array([True, False, True, True, False]), np.full(3, 0.5, np.float32)
    for env in model.env.envs:
        env.action_masks = lambda: mask
        env.reset, env.step = lambda **_: (state, {}), lambda action: (state, 0.0, False, False, {})
    model.n_steps, model.rollout_buffer.buffer_size = 2000, 2000
    model.rollout_buffer.reset()
    with th.no_grad():
        model.policy.action_net.bias[:] = th.tensor([0.0, 3.0, 1.0, -1.0, 2.0])
    collect(model)
    drawn = np.bincount(model.rollout_buffer.actions.astype(int).ravel(), minlength=5) / 6000
    with th.no_grad():
        logits = model.policy.action_net(th.as_tensor(state)).numpy()
    expected = np.exp(logits) * mask / (np.exp(logits) * mask).sum()
    np.testing.assert_allclose(drawn, expected, atol=4 * 0.5 / 6000**0.5)
    assert drawn[1] == drawn[4] == 0


@pytest.mark.parametrize("cls", [PPOClip, PPOAdaptiveKL])
def test_runs_with_hybrid_actions_resume_exactly(cls: Any, tmp_path: Any) -> None:
    space, of_parts = HYBRID["conditional"]
    exact(cls, lambda: noise_envs(space), tmp_path, fast=True, policy_kwargs=of_parts)


@pytest.mark.parametrize("distribution", ["squashed", "squashed of state", "beta"])
def test_extreme_outputs_stay_finite(distribution: str) -> None:
    """Actions that rounding has moved to the bounds have finite log-probabilities, and the environment takes them."""
    model = small(env=noise_envs(ASYMMETRIC), fast=True, policy_kwargs=DISTRIBUTIONS[distribution])
    with th.no_grad():
        model.policy.action_net.bias[:3] = 60.0
    model.learn(32)
    actions = model.rollout_buffer.actions
    assert np.isfinite(model.rollout_buffer.log_probs).all() and np.abs(actions).max() <= 1
    assert all(map(ASYMMETRIC.contains, model.policy.unscale_action(actions.reshape(-1, 3))))


class Cautious(BoxActions, ActorCriticPolicy):
    """Scales actions to the lower half of their bounds."""

    def unscale_action(self, scaled_action: np.ndarray) -> np.ndarray:
        return super().unscale_action((scaled_action - 1) / 2)


@pytest.mark.parametrize(
    ("space", "arguments"),
    [
        (ASYMMETRIC, {}),
        (spaces.Box(np.asfortranarray(-np.ones((2, 3), np.float32)), np.full((2, 3), 0.5, np.float32)), {}),
        (spaces.Box(-1, 1, (2,), np.float64), {}),
        (ASYMMETRIC, {"policy_kwargs": DISTRIBUTIONS["squashed"]}),
        (ASYMMETRIC, {"policy_kwargs": DISTRIBUTIONS["beta"]}),
        (ASYMMETRIC, {"policy_kwargs": DISTRIBUTIONS["beta"], "policy": Cautious}),
    ],
)
def test_actions_are_brought_into_their_bounds_as_by_sb3(space: spaces.Box, arguments: dict[str, Any]) -> None:
    drawn, taken = [], []

    def keep(found: dict[str, Any], _: object) -> bool:
        drawn.append(found["actions"].copy())
        taken.append(found["clipped_actions"].copy())
        return True

    model = small(env=noise_envs(space, n_envs=3), fast=True, n_steps=200, batch_size=100, **arguments)
    model.learn(600, callback=keep)
    scaled = np.array(drawn)
    if model.policy.squash_output:
        scale = (
            model.policy.unscale_action if "policy" in arguments else BasePolicy.unscale_action.__get__(model.policy)
        )
        scaled = scale(scaled)
    np.testing.assert_array_equal(np.array(taken), np.clip(scaled, space.low, space.high))


def deterministic(model_class: Any, env: VecEnv, **arguments: Any) -> Any:
    """Return a model after two rollouts with a nearly deterministic policy, which acts the same on both paths."""
    model = model_class(policy_for(env), env, n_steps=N_STEPS, batch_size=20, seed=2, device="cpu", **arguments)
    model.policy.log_std.data.fill_(-20.0)
    _, callback = model._setup_learn(10**6)
    for _ in range(2):
        model.collect_rollouts(env, callback, model.rollout_buffer, N_STEPS)
    return model


@pytest.mark.parametrize("kind", ["array", "normalized", "dictionary"])
def test_the_buffer_is_that_of_sb3(kind: str) -> None:
    """Episodes are truncated after 7 steps, so the values of their last states are added to the rewards."""

    def make_env() -> VecEnv:
        env = noise_envs(BOX, MIXED if kind == "dictionary" else VECTOR, n_envs=3)
        return VecNormalize(env) if kind == "normalized" else env

    theirs, ours = deterministic(PPO, make_env()), deterministic(PPOClip, make_env(), fast=True)
    assert ours.num_timesteps == theirs.num_timesteps == 2 * 3 * N_STEPS
    assert list(ours.ep_info_buffer) == list(theirs.ep_info_buffer)
    np.testing.assert_array_equal(ours._last_episode_starts, theirs._last_episode_starts)
    assert ours.rollout_buffer.full and ours.rollout_buffer.pos == N_STEPS
    pairs = [
        (name, getattr(theirs.rollout_buffer, name), getattr(ours.rollout_buffer, name))
        for name in ("observations", "actions", "rewards", "episode_starts", "values", "advantages", "returns")
    ]
    if kind == "dictionary":
        _, wanted, found = pairs.pop(0)
        pairs += [(key, wanted[key], found[key]) for key in wanted]
    for name, their_array, our_array in pairs:
        assert our_array.dtype == their_array.dtype and our_array.shape == their_array.shape, name
        np.testing.assert_allclose(our_array, their_array, rtol=1e-4, atol=1e-4, err_msg=name)


def test_observations_that_are_not_finite_are_refused() -> None:
    env: Any = noise_envs(BOX, spaces.Box(-1, 1, (3,), np.float32))
    env.envs[1].observation_space.sample = lambda: np.full(3, np.nan, np.float32)
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
        (spaces.MultiDiscrete([1, 1]), lambda observations: observations.astype(np.float32)),
        (VECTOR, not_aligned),
    ],
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
