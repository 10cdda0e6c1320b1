"""Models with LSTMs are saved, loaded and resumed, and report errors."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from recurrence import SMALL, ragged_envs, small_recurrent
from resuming import assert_exact
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnvWrapper

from fresh import ended, run_code_anew
from helpers import ACTION_SPACES, DICT, IMAGE, VARIANTS, VECTOR, NoiseEnv, assert_same_weights, save
from sb3_ppo_variants import ArgumentError, DamagedFileError, NonFiniteError, PPOAdaptiveKL, PPOClip, SeparateUpdates

POLICIES: dict[str, spaces.Space] = {"MlpLstmPolicy": VECTOR, "CnnLstmPolicy": IMAGE, "MultiInputLstmPolicy": DICT}


def assert_acts_alike(one: Any, other: Any) -> None:
    envs = ragged_envs(space=one.observation_space)
    envs.seed(0)
    observations: Any = envs.reset()
    states: list[Any] = [None, None]
    for step in range(4):
        starts = np.full(3, step == 0)
        acted = [m.predict(observations, s, starts, True) for m, s in zip((one, other), states, strict=True)]
        states = [state for _, state in acted]
        np.testing.assert_array_equal(acted[0][0], acted[1][0])
        np.testing.assert_array_equal(states[0], states[1])
        observations = envs.step(acted[0][0])[0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_loaded_models_are_the_saved_ones(policy: str, variant: Any, weights_only: bool) -> None:
    model = small_recurrent(variant, ragged_envs(space=POLICIES[policy]), policy)
    loaded = variant.load(save(model), ragged_envs(space=POLICIES[policy]), "cpu", weights_only=weights_only)
    assert_acts_alike(model, loaded)
    loaded.learn(48)


@pytest.mark.parametrize("trained", [False, True])
def test_models_of_sb3_contrib_go_on_as_they_would(trained: bool) -> None:
    theirs = small_recurrent(RecurrentPPO)
    if trained:
        theirs.learn(48)
    file = save(theirs)
    ended = []
    for cls in (RecurrentPPO, PPOClip):
        file.seek(0)
        model: Any = cls.load(file, ragged_envs(), device="cpu")
        model.fast = False
        assert_acts_alike(model, theirs)
        model.set_random_seed(1)
        ended.append(model.learn(96).policy.state_dict())
    for key, weight in ended[0].items():
        assert th.equal(ended[1][key], weight), key


def test_sb3_contrib_loads_models_of_ours() -> None:
    ours = small_recurrent(PPOClip).learn(48)
    theirs = RecurrentPPO.load(save(ours), ragged_envs(), device="cpu")
    assert_acts_alike(ours, theirs)
    theirs.learn(48)


def test_its_models_are_of_no_other_objective() -> None:
    with pytest.raises(DamagedFileError, match="is of sb3-contrib's RecurrentPPO, not of PPOAdaptiveKL"):
        PPOAdaptiveKL.load(save(small_recurrent(RecurrentPPO)))
    model = small_recurrent(PPOAdaptiveKL)
    model.set_parameters(save(small_recurrent(RecurrentPPO, seed=9)))
    assert_acts_alike(model, small_recurrent(RecurrentPPO, seed=9))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kill_at", [60, 97, 150])
@pytest.mark.parametrize("variant", [PPOClip, PPOAdaptiveKL])
def test_a_run_that_is_cut_is_the_run_that_is_not(variant: Any, kill_at: int, tmp_path: Path) -> None:
    updates = SeparateUpdates() if variant is PPOClip else None
    make = partial(small_recurrent, variant, updates=updates)
    assert_exact(make, ragged_envs, tmp_path, 240, 96, kill_at)


class Spoiled(VecEnvWrapper):
    """Returns an observation with NaN at one step."""

    steps = 0

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        returned: Any = self.venv.step_wait()
        observations, *others = returned
        self.steps += 1
        if self.steps == 20:
            observations[1, 0] = np.nan
        return observations, *others


def test_what_is_not_finite_leaves_the_policy_as_it_was() -> None:
    model = small_recurrent(PPOClip, Spoiled(ragged_envs()))
    with pytest.raises(NonFiniteError, match="observation of environment 1"):
        model.learn(96)
    first = small_recurrent(PPOClip).learn(48)
    assert_same_weights(model, first)
    model.learn(48)  # The LSTM states are reset.
    assert all(bool(p.isfinite().all()) for p in model.policy.parameters())


def test_an_update_that_is_not_finite_is_undone() -> None:
    env = ragged_envs(ACTION_SPACES["Discrete"])
    model = small_recurrent(PPOClip, env, learning_rate=lambda progress: 1e30 if progress < 0.6 else 1e-3)
    with pytest.raises(NonFiniteError):
        model.learn(96)
    assert all(bool(p.isfinite().all()) for p in model.policy.parameters())


def test_evaluation_by_sb3() -> None:
    returns, lengths = evaluate_policy(
        small_recurrent(PPOClip), ragged_envs(), n_eval_episodes=5, return_episode_rewards=True
    )
    assert isinstance(returns, list)
    assert isinstance(lengths, list)
    assert len(returns) == len(lengths) == 5


class Dictionaries(RecurrentDictRolloutBuffer):
    pass


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "plain buffer": ({"rollout_buffer_class": RolloutBuffer}, "use RecurrentRolloutBuffer or a subclass"),
    "buffer of dictionaries": ({"rollout_buffer_class": Dictionaries}, "use RecurrentRolloutBuffer or a subclass"),
    "buffer of arrays": (
        {"rollout_buffer_class": RecurrentRolloutBuffer, "policy": "MultiInputLstmPolicy", "env": DICT},
        "use RecurrentDictRolloutBuffer or a subclass",
    ),
    "buffer of LSTMs": (
        {"rollout_buffer_class": RecurrentRolloutBuffer, "policy": "MlpPolicy", "policy_kwargs": None},
        "cannot hold rollouts of ActorCriticPolicy; use RolloutBuffer",
    ),
    "a vector for dictionaries": ({"policy": "MultiInputLstmPolicy"}, "use 'MlpLstmPolicy', or 'CnnLstmPolicy'"),
    "dictionaries for a vector": ({"env": DICT}, "does not support Dict observations: use 'MultiInputLstmPolicy'"),
    "unknown policy": ({"policy": "LstmPolicy"}, "MultiInputPolicy, .*MlpLstmPolicy"),
    "hidden size": ({"policy_kwargs": {"lstm_hidden_size": 0}}, "an integer >= 1"),
    "layers": ({"policy_kwargs": {"n_lstm_layers": 1.5}}, "an integer >= 1"),
    "both": ({"policy_kwargs": {"shared_lstm": True}}, "needs enable_critic_lstm=False"),
    "options": ({"policy_kwargs": {"lstm_kwargs": {"batch_first": True}}}, "'bias' and 'dropout'"),
    "entry": ({"policy_kwargs": {"lstm_size": 8}}, "lstm_hidden_size"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    arguments, message = BAD[name]
    env = ragged_envs(space=arguments.get("env", VECTOR))
    with pytest.raises(ArgumentError, match=message):
        small_recurrent(PPOClip, env, **{key: value for key, value in arguments.items() if key != "env"})


def test_sb3_contrib_missing() -> None:
    """sb3-contrib is only imported for its policies, and the error says what to install."""
    code = "import sys; sys.modules['sb3_contrib'] = None; from sb3_ppo_variants import PPOClip; "
    code += "PPOClip('MlpPolicy', 'CartPole-v1', n_steps=16, batch_size=16).learn(16); print('trained'); "
    code += "PPOClip('MlpLstmPolicy', 'CartPole-v1')"
    result = ended(run_code_anew, code)
    assert "trained" in result.stdout
    assert "ArgumentError: policy='MlpLstmPolicy' and the like need sb3-contrib: pip install" in result.stderr


def test_policy_classes_need_no_alias() -> None:
    model = PPOClip(RecurrentActorCriticPolicy, NoiseEnv(ragged_envs().action_space), policy_kwargs=SMALL)
    assert isinstance(model.rollout_buffer, RecurrentRolloutBuffer)
    assert model.rollout_buffer_class is RecurrentRolloutBuffer
