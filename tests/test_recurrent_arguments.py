"""Arguments of models with LSTMs, and SB3's evaluation of them."""

from typing import Any

import numpy as np
import pytest
from recurrence import SMALL, ragged_envs, small_recurrent
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.evaluation import evaluate_policy

from helpers import DICT, VECTOR, NoiseEnv
from sb3_ppo_variants import ArgumentError, PPOClip


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


def test_policy_classes_need_no_alias() -> None:
    model = PPOClip(RecurrentActorCriticPolicy, NoiseEnv(ragged_envs().action_space), policy_kwargs=SMALL)
    assert isinstance(model.rollout_buffer, RecurrentRolloutBuffer)
    assert model.rollout_buffer_class is RecurrentRolloutBuffer


def test_evaluation_by_sb3() -> None:
    returns, lengths = evaluate_policy(
        small_recurrent(PPOClip), ragged_envs(), n_eval_episodes=5, return_episode_rewards=True, warn=False
    )
    assert np.shape(returns) == np.shape(lengths) == (5,)
