"""Masked policies with sb3-contrib's tools, and the errors for wrong use."""

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.evaluation
import torch as th
from gymnasium import spaces
from masked_envs import DISCRETE, MASKED_SPACES, MULTI, MaskedNoiseEnv, masked_envs, masked_hybrid_envs, small_masked
from sb3_contrib import MaskablePPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from helpers import KICK, VARIANTS, VECTOR, NoiseEnv, noise_envs
from sb3_ppo_variants import ArgumentError, EnvOutputError, PPOClip
from sb3_ppo_variants.envs.masks import random_actions
from sb3_ppo_variants.evaluation import MaskedEvalCallback, WithMasks


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_task_that_only_masks_make_easy_is_learned(variant: Any) -> None:
    """In sb3-contrib's task, masks leave 15 of 70 actions, one of which is right. A random policy scores 7."""
    env = InvalidActionEnvDiscrete(dim=70, n_invalid_actions=55)
    own = {"clip_range": 0.4} if variant is PPOClip else {}
    model = variant("MaskableMlpPolicy", env, gamma=0.1, seed=32, learning_rate=1e-3, n_epochs=4, **own).learn(2048)
    assert np.mean(evaluate_policy(model, env, 5, warn=False)[0]) > 60


def test_masks_at_predict_are_kept_to() -> None:
    model = small_masked(env=masked_envs(DISCRETE))
    theirs: Any = small_masked(MaskablePPO, masked_envs(DISCRETE), "MlpPolicy")
    theirs.set_parameters(model.get_parameters())
    observations = np.random.default_rng(0).uniform(-1, 1, (20, 3)).astype(np.float32)
    for mask in ([1, 0, 0], [0, 1, 1], [1, 1, 1]):
        masks = np.tile(np.array(mask, bool), (20, 1))
        for deterministic in (False, True):
            th.manual_seed(0)
            actions, state = model.predict(observations, deterministic=deterministic, action_masks=masks)
            th.manual_seed(0)
            expected, _ = theirs.predict(observations, deterministic=deterministic, action_masks=masks)
            np.testing.assert_array_equal(actions, expected)
            assert np.array(mask)[actions].all() and state is None
    assert model.predict(observations[0], action_masks=[0, 0, 1])[0] == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scale", [1e10, 1e20, 1e35])
@pytest.mark.parametrize("policy", ["MaskableMlpPolicy", "MaskableMlpLstmPolicy"])
@pytest.mark.parametrize("fast", [False, "auto"])
@pytest.mark.parametrize("name", [*MASKED_SPACES, "Dict"])
def test_no_logits_let_a_masked_action_be_drawn(name: str, fast: Any, policy: str, scale: float) -> None:
    # The environments fail if an action is masked.
    env = masked_hybrid_envs(KICK) if name == "Dict" else masked_envs(MASKED_SPACES[name])
    model = small_masked(env=env, policy=policy, fast=fast, learning_rate=0.0, ent_coef=0.01)
    logits = slice(0, 3) if name == "Dict" else slice(None)
    with th.no_grad():
        model.policy.action_net.weight[logits] *= scale
        model.policy.action_net.bias[logits] = -scale * th.linspace(1, 2, len(model.policy.action_net.bias[logits]))
    model.learn(64)
    assert 0 <= model.logger.name_to_value["train/kl"] < 1e-5
    assert np.isfinite(model.logger.name_to_value["train/entropy_loss"])
    observations, state = env.reset(), None
    for deterministic in (False, True):
        for _ in range(20):
            actions, state = WithMasks(model, env).predict(observations, state, deterministic=deterministic)
            observations = env.step(actions)[0]


def test_evaluation_and_its_callback(tmp_path: Any) -> None:
    env = Monitor(MaskedNoiseEnv(MULTI))  # It fails if an action is masked.
    model = small_masked()
    returns, _ = evaluate_policy(model, env, 3, return_episode_rewards=True)
    assert isinstance(returns, list) and len(returns) == 3
    callback = MaskableEvalCallback(Monitor(MaskedNoiseEnv(MULTI)), eval_freq=20, log_path=str(tmp_path), verbose=0)
    model.learn(96, callback=callback)
    assert len(np.load(tmp_path / "evaluations.npz")["timesteps"]) == 1


@pytest.mark.parametrize("policy", ["MlpPolicy", "MaskableMlpPolicy"])
def test_what_a_script_of_maskable_ppo_has_to_change(policy: str) -> None:
    """One message says it, before the first step."""
    masked = policy != "MlpPolicy"
    eval_env = Monitor(MaskedNoiseEnv(MULTI))
    model = small_masked(policy=policy)
    other = "MlpPolicy" if masked else "MaskableMlpPolicy"
    for callback in (MaskableEvalCallback(eval_env, use_masking=not masked), None):
        with pytest.raises(ArgumentError, match=f"use_masking={not masked}: .* '{other}' instead of '{policy}'"):
            model.learn(32, callback=callback, use_masking=None if callback else not masked)
    assert model.num_timesteps == 0
    callback = MaskableEvalCallback(eval_env, eval_freq=8, use_masking=masked, verbose=0)
    if masked:
        assert model.learn(32, callback=callback, use_masking=True).num_timesteps >= 32
    else:
        with pytest.raises(ArgumentError, match="MaskedEvalCallback: use_masking=True: "):
            model.learn(32, callback=MaskedEvalCallback(eval_env))


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (np.ones(4, bool), r"an array of shape \(4,\), but must be of shape"),
        (np.zeros(3, bool), "False for every action"),
        (["yes", "no", "no"], "an array of booleans"),
    ],
)
def test_a_wrong_mask_ends_training(mask: Any, problem: str) -> None:
    class Wrong(MaskedNoiseEnv):
        def action_masks(self) -> Any:
            return self.masks if self._steps < 5 else mask

    env = DummyVecEnv([lambda: MaskedNoiseEnv(DISCRETE, length=90), lambda: Wrong(DISCRETE, length=90)])
    model = small_masked(env=env)
    with pytest.raises(EnvOutputError, match=f"the action mask of environment 1 at step 10 is .*{problem}"):
        model.learn(32)


def test_environments_without_masks_are_refused_before_the_first_step() -> None:
    for env in (noise_envs(DISCRETE), "CartPole-v1"):
        model = small_masked(env=env)
        with pytest.raises(ArgumentError, match=r"the environments have no action_masks\(\).*ActionMasker"):
            model.learn(16)
        assert model.num_timesteps == 0


def test_masks_that_are_ignored_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"the environments have action_masks\(\), which ActorCriticPolicy ignores"):
        small_masked(env=DummyVecEnv([lambda: InvalidOrNot(DISCRETE)]), policy="MlpPolicy").learn(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        small_masked(env=noise_envs(DISCRETE), policy="MlpPolicy").learn(16)
        small_masked().learn(16)


class InvalidOrNot(MaskedNoiseEnv):
    def step(self, action: Any) -> Any:
        return super(MaskedNoiseEnv, self).step(action)


PREDICTIONS: list[tuple[Any, str]] = [
    (None, "needs the masks of the states.*get_action_masks"),
    ([1, 0], "action_masks=.* is not allowed; allowed: 3 booleans for each observation"),
    (["a", "b", "c"], "of observation 0 is .*, but must be an array of booleans"),
    (np.ones((2, 3)), "action_masks is for 2 environments, but there are 1 observations"),
    ([0, 0, 0], "observation 0 is False for every action, but must be True for at least one"),
]


@pytest.mark.parametrize(("masks", "problem"), PREDICTIONS)
def test_masks_that_predict_does_not_take(masks: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        small_masked(env=masked_envs(DISCRETE)).predict(np.zeros(3, np.float32), action_masks=masks)


def test_what_does_not_fit_masks() -> None:
    with pytest.raises(ArgumentError, match="ActorCriticPolicy does not use masks"):
        small_masked(env=noise_envs(DISCRETE), policy="MlpPolicy").predict(VECTOR.sample(), action_masks=np.ones(3))
    with pytest.raises(ArgumentError, match="needs the masks"):
        stable_baselines3.common.evaluation.evaluate_policy(small_masked(), masked_envs(MULTI), 1, warn=False)
    with pytest.raises(ArgumentError, match=r"Box.* cannot be masked"):
        small_masked(env=gym.make("Pendulum-v1"))
    with pytest.raises(ArgumentError, match="use_sde"):
        small_masked(use_sde=True)
    with pytest.raises(ArgumentError, match="MaskableRolloutBuffer"):
        small_masked(rollout_buffer_class=RolloutBuffer)


@pytest.mark.parametrize("name", MASKED_SPACES)
def test_random_actions_are_allowed(name: str) -> None:
    env = masked_envs(MASKED_SPACES[name])
    env.seed(0)
    env.reset()
    env.action_space.seed(0)
    seen = set()
    for _ in range(40):
        actions = random_actions(env)
        env.step(actions)  # Fails if an action is masked.
        seen |= {tuple(np.ravel(action).tolist()) for action in actions}
    assert len(seen) > 2


@pytest.mark.parametrize(
    ("space", "mask", "allowed"),
    [
        (spaces.Discrete(3, start=1), [0, 0, 1], 3),
        (spaces.MultiDiscrete([2, 3], start=[5, 7]), [0, 1, 1, 0, 0], [6, 7]),
    ],
)
def test_random_actions_begin_where_the_space_does(space: spaces.Space, mask: list[int], allowed: object) -> None:
    env = NoiseEnv(space)
    env.action_masks = lambda: np.array(mask, dtype=bool)  # type: ignore[attr-defined]
    (action,) = random_actions(DummyVecEnv([lambda: env]))
    np.testing.assert_array_equal(action, allowed)
    assert space.contains(action)
