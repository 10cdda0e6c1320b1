"""The fast path of policies with LSTMs computes the same as the reference path."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from recurrence import SMALL, assert_alike, ragged_envs, small_recurrent
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from helpers import ACTION_SPACES, DICT, IMAGE, VARIANTS
from sb3_ppo_variants import ArgumentError, ClippedError, ExactKL, KLAdaptive, PPOAdaptiveKL, PPOClip, SeparateUpdates

CASES: dict[str, dict[str, Any]] = {
    **{name: {"env": {"action_space": space}} for name, space in ACTION_SPACES.items()},
    "one environment": {"env": {"n_envs": 1}},
    "shared LSTM": {"policy_kwargs": {**SMALL, "shared_lstm": True, "enable_critic_lstm": False}},
    "no LSTM of the critic": {"policy_kwargs": {**SMALL, "enable_critic_lstm": False}},
    "layers": {"policy_kwargs": {**SMALL, "n_lstm_layers": 2}},
    "no bias": {"policy_kwargs": {**SMALL, "lstm_kwargs": {"bias": False}}},
    "images": {"env": {"space": IMAGE}, "policy": "CnnLstmPolicy"},
    "dictionaries": {"env": {"space": DICT}, "policy": "MultiInputLstmPolicy"},
    "gSDE": {"use_sde": True},
    "target_kl": {"target_kl": 1e-3, "learning_rate": 1e-2},
    "stop": {"stop": ExactKL(1e-3), "learning_rate": 1e-2, "value_loss": ClippedError(0.1, pessimistic=False)},
    "adaptive rate": {"learning_rate": KLAdaptive(desired_kl=1e-3, every="minibatch")},
    "minibatches of other sizes": {"batch_size": 21},
    "separate updates": {"updates": SeparateUpdates()},
    "another optimizer": {"policy_kwargs": {**SMALL, "optimizer_class": th.optim.SGD}},
}


def both(cls: Any, name: str, total_timesteps: int, **more: Any) -> list[Any]:
    arguments = {**CASES[name], **more}
    env = arguments.pop("env", {})
    models = [small_recurrent(cls, ragged_envs(**env), fast=fast, **arguments) for fast in (False, True)]
    for model in models:
        model.set_random_seed(4)
        model.learn(total_timesteps)
    return models


@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", CASES)
def test_the_same_rollouts_and_updates(name: str) -> None:
    reference, fast = both(PPOClip, name, 96)
    theirs, ours = reference.rollout_buffer, fast.rollout_buffer
    np.testing.assert_array_equal(ours.episode_starts, theirs.episode_starts)
    np.testing.assert_allclose(ours.actions, theirs.actions, rtol=1e-3, atol=1e-4)
    for column in ("values", "log_probs", "hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"):
        np.testing.assert_allclose(getattr(ours, column), getattr(theirs, column), rtol=1e-3, atol=1e-4)
    assert_alike(reference, fast)
    assert fast._n_updates == reference._n_updates
    assert fast.logger.name_to_value["train/kl"] == pytest.approx(reference.logger.name_to_value["train/kl"], rel=1e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_class(variant: Any) -> None:
    assert_alike(*both(variant, "Discrete", 144))


class Derived(RecurrentActorCriticPolicy):
    def predict_values(self, *args: Any) -> Any:
        return super().predict_values(*args) + 1


class Buffer(RecurrentRolloutBuffer):
    pass


def hooked(model: Any) -> None:
    model.policy.lstm_actor.register_forward_hook(lambda *_: None)


def with_own_forward(model: Any) -> None:
    lstm = model.policy.lstm_actor
    lstm.forward = lambda *arguments: nn.LSTM.forward(lstm, *arguments)


OBSTACLES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "method": ({"policy": Derived}, None, "Derived overrides predict_values"),
    "buffer": ({"rollout_buffer_class": Buffer}, None, "the rollout buffer is a Buffer"),
    "dropout": ({"policy_kwargs": {**SMALL, "n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.1}}}, None, "has dropout"),
    "hooks": ({}, hooked, "modules have hooks"),
    "its own forward": ({}, with_own_forward, "a LSTM has its own forward"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_it_cannot_compute_is_refused_and_takes_the_reference(name: str) -> None:
    arguments, change, reason = OBSTACLES[name]
    if change is None:
        with pytest.raises(ArgumentError, match=f"fast=True is not possible.*{reason}"):
            small_recurrent(PPOClip, fast=True, **arguments)
    model = small_recurrent(PPOClip, **arguments)
    if change is not None:
        change(model)
        model.fast = True
        with pytest.raises(ArgumentError, match=reason):
            model.learn(48)
        model.fast = "auto"
    model.learn(48)


class Fails(BaseCallback):
    """Ends the rollout with an error, after pickling the policy."""

    def _on_step(self) -> bool:
        pickle.dumps(self.model.policy)
        assert self.num_timesteps < 30, "stopped"
        return True


def test_the_policy_is_left_as_it_was_made() -> None:
    model = small_recurrent(PPOAdaptiveKL, fast=True)
    with pytest.raises(AssertionError, match="stopped"):
        model.learn(48, callback=Fails())
    assert "_process_sequence" not in vars(model.policy)
    model.learn(48)
    assert not model.policy.optimizer.param_groups[0]["fused"]
