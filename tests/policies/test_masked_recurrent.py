"""Policies with masks and a memory equal RecurrentPPO where everything is allowed, and MaskablePPO without a past."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import DISCRETE, MASKED_SPACES, MULTI, MaskedNoiseEnv, masked_envs, sizes_of, small_masked
from recurrence import SMALL, RaggedEnv, small_recurrent
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable import evaluation
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from stable_baselines3.common.callbacks import EvalCallback, EveryNTimesteps
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor

from helpers import VECTOR, LogRecorder, assert_same_weights, noise_envs
from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.evaluation import WithMasks
from sb3_ppo_variants.policies.masked import MaskableRecurrentActorCriticPolicy


def small_both(cls: Any = PPOClip, env: Any = None, policy: Any = "MaskableMlpLstmPolicy", **arguments: Any) -> Any:
    return small_masked(cls, env, policy, **{"learning_rate": 1e-3, "policy_kwargs": SMALL, **arguments})


def assert_close(one: Any, other: Any, rtol: float = 1e-3, atol: float = 1e-5) -> None:
    for key, weight in one.policy.state_dict().items():
        th.testing.assert_close(other.policy.state_dict()[key], weight, rtol=rtol, atol=atol)


class OpenEnv(RaggedEnv):
    """Allows every action."""

    def action_masks(self) -> Any:
        return np.ones(sum(sizes_of(self.action_space)), bool)


def open_envs(action_space: spaces.Space, space: spaces.Space = VECTOR) -> VecEnv:
    return DummyVecEnv([lambda: OpenEnv(action_space, deepcopy(space)) for _ in range(3)])


CONTRIB: dict[str, tuple[spaces.Space, str, Any, dict[str, Any]]] = {
    "Discrete": (VECTOR, "MlpLstmPolicy", MaskableRecurrentActorCriticPolicy, {}),
    "shared LSTM": (
        VECTOR,
        "MlpLstmPolicy",
        MaskableRecurrentActorCriticPolicy,
        {"policy_kwargs": {**SMALL, "shared_lstm": True, "enable_critic_lstm": False}},
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*which RecurrentActorCritic.*ignores")
@pytest.mark.parametrize("space", [DISCRETE, MULTI])
@pytest.mark.parametrize("name", CONTRIB)
def test_recurrent_ppo_where_everything_is_allowed(name: str, space: spaces.Space) -> None:
    """sb3-contrib's masked distributions normalise twice, so its own policy differs in the last bit."""
    observed, alias, policy, arguments = CONTRIB[name]
    logs = LogRecorder(), LogRecorder()
    theirs = small_recurrent(RecurrentPPO, open_envs(space, observed), policy, **arguments)
    theirs.learn(96, callback=logs[0])
    plain = small_recurrent(RecurrentPPO, open_envs(space, observed), alias, **arguments).learn(96)
    ours = small_recurrent(PPOClip, open_envs(space, observed), f"Maskable{alias}", fast=False, **arguments)
    ours.learn(96, callback=logs[1])
    assert_same_weights(ours, theirs)
    assert_close(plain, ours, rtol=1e-5, atol=1e-6)
    assert ours._n_updates == theirs._n_updates == plain._n_updates
    for their_values, our_values in zip(*(log.updates for log in logs), strict=True):
        for key in {key for key in their_values if not key.startswith("time/")}:
            assert our_values[key] == pytest.approx(their_values[key], rel=1e-5, abs=1e-7, nan_ok=True), key


class FromZero(BaseFeaturesExtractor):
    """An LSTM that begins with every observation."""

    def __init__(self, space: spaces.Box):
        super().__init__(space, features_dim=8)
        self.lstm = th.nn.LSTM(3, 8)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.lstm(observations[None])[0][0]


class ShortEnv(MaskedNoiseEnv):
    """Ends each episode after a step, with no value to bootstrap from."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, True, False, info


def short_envs(space: spaces.Space) -> VecEnv:
    return DummyVecEnv([lambda: ShortEnv(space, deepcopy(VECTOR)) for _ in range(3)])


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", MASKED_SPACES)
def test_maskable_ppo_without_a_past(name: str) -> None:
    """In episodes of one step, an LSTM is a layer of features, and sb3-contrib can train it with masks."""
    space = MASKED_SPACES[name]
    arguments: dict[str, Any] = {"batch_size": 48, "n_epochs": 3, "ent_coef": 0.1, "learning_rate": 1e-2}
    ours = small_both(env=short_envs(space), **arguments)
    kwargs = {"net_arch": [8], "features_extractor_class": FromZero, "share_features_extractor": False}
    theirs = small_masked(MaskablePPO, short_envs(space), "MlpPolicy", **{**arguments, "policy_kwargs": kwargs})
    names = {"lstm_actor": "pi_features_extractor.lstm", "lstm_critic": "vf_features_extractor.lstm"}

    def named(weights: dict[str, th.Tensor]) -> Iterator[tuple[str, th.Tensor]]:
        for key, weight in weights.items():
            part, _, rest = key.partition(".")
            yield f"{names.get(part, part)}.{rest}", weight
            if part == "lstm_actor":
                yield f"features_extractor.lstm.{rest}", weight

    theirs.policy.load_state_dict(dict(named(ours.policy.state_dict())))
    for model in (ours, theirs):
        model.set_random_seed(7)
        model.learn(96)
    assert ours.rollout_buffer.action_masks.mean() < 0.9
    expected = dict(theirs.policy.state_dict())
    for key, weight in named(ours.policy.state_dict()):
        th.testing.assert_close(weight, expected[key], rtol=1e-4, atol=1e-5)
    for key in ("train/approx_kl", "train/entropy_loss", "train/value_loss", "train/policy_gradient_loss"):
        theirs_logged = theirs.logger.name_to_value[key]
        assert ours.logger.name_to_value[key] == pytest.approx(theirs_logged, rel=1e-3, abs=1e-5), key


def test_predictions_follow_states_and_masks() -> None:
    """An action is the most probable one of the allowed ones after all observations of the episode."""
    model = small_both(env=masked_envs(DISCRETE), learning_rate=1e-2).learn(480)
    policy, generator = model.policy, np.random.default_rng(0)
    state, memory = None, [th.zeros(1, 3, 8)] * 2
    for step in range(6):
        observations = generator.normal(size=(3, 3)).astype(np.float32)
        masks = generator.random((3, 3)) < 0.5
        masks[np.arange(3), generator.integers(3, size=3)] = True
        starts = np.array([step in (0, 3), step == 0, step in (0, 5)])
        actions, state = model.predict(observations, state, starts, True, action_masks=masks)
        with th.no_grad():
            memory = [m * th.as_tensor(~starts).float().reshape(1, 3, 1) for m in memory]
            output, memory = policy.lstm_actor(th.as_tensor(observations)[None], tuple(memory))
            logits = policy.action_net(policy.mlp_extractor.forward_actor(output[0])).numpy()
        np.testing.assert_array_equal(actions, np.where(masks, logits, -np.inf).argmax(axis=1))
        np.testing.assert_allclose(state, th.stack(tuple(memory)), rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentError, match=r"^action_masks=None: MaskableRecurrentActorCriticPolicy needs the masks"):
        model.predict(observations, state)
    with pytest.raises(ArgumentError, match=r"^action_masks is for 3 environments, but there are 2 observations"):
        model.predict(observations[:2], action_masks=masks)


class Sign(gym.Env):
    """Shows a sign only at first. The reward is for the number of the sign, which a mask allows in the second step."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._sign, self._steps = int(self.np_random.integers(2)), 0
        return np.full(1, 2 * self._sign - 1, np.float32), {}

    def action_masks(self) -> np.ndarray:
        return np.array([False, False, True]) if self._steps == 0 else np.array([True, True, False])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._steps += 1
        return np.zeros(1, np.float32), float(action == self._sign), self._steps == 2, False, {}


def test_evaluation_keeps_the_memory() -> None:
    env = DummyVecEnv([Sign] * 4)
    model = small_both(PPOClip, env, learning_rate=1e-2, batch_size=64, n_epochs=10).learn(1_200)
    with pytest.warns(UserWarning, match="Monitor"):
        assert evaluate_policy(WithMasks(model, env), env, 40)[0] == 1.0
    with pytest.raises(ArgumentError, match=r"^state=None: episodes go on .* use SB3's with .*WithMasks\(model, env\)"):
        evaluation.evaluate_policy(model, env, 40, warn=False)
    # Without masks, the error names what does not raise this one.
    with pytest.raises(ArgumentError, match=r"^action_masks=None: .*WithMasks\(model, env\) to SB3's evaluate_policy"):
        evaluate_policy(model, env, 40, warn=False)


@pytest.mark.parametrize(
    ("make", "problem"),
    [(EvalCallback, "EvalCallback passes no action masks"), (MaskableEvalCallback, "MaskableEvalCallback drops the")],
)
def test_evaluations_that_would_fail_are_refused(make: Any, problem: str) -> None:
    env = DummyVecEnv([Sign] * 4)
    inside = EveryNTimesteps(50, callback=make(VecMonitor(DummyVecEnv([Sign])), verbose=0))
    model = small_both(PPOClip, env)
    with pytest.raises(ArgumentError, match=f"^callback: {problem}.*: use sb3_ppo_variants.evaluation.MaskedEvalCa"):
        model.learn(64, [inside])
    assert model.num_timesteps == 0


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "space": ({"env": noise_envs(spaces.Box(-1, 1, (2,)))}, "cannot be masked"),
    "observations": ({"policy": "MaskableMultiInputLstmPolicy"}, "use 'MaskableMlpLstmPolicy'"),
    "buffer": ({"rollout_buffer_class": MaskableRolloutBuffer}, "use MaskableRecurrentRolloutBuffer"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    arguments, message = BAD[name]
    with pytest.raises(ArgumentError, match=message):
        small_both(**arguments)
