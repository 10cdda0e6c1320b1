"""On its reference path, PPOClip with an LSTM matches sb3-contrib's RecurrentPPO bit for bit."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from recurrence import SMALL, Recall, ragged_envs, small_recurrent
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from helpers import ACTION_SPACES, BOX, DICT, IMAGE, VARIANTS, VECTOR, LogRecorder, assert_same_weights, noise_envs
from sb3_ppo_variants import (
    ArgumentError,
    ExactCheckpointCallback,
    NonFiniteError,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    SeparateUpdates,
)
from sb3_ppo_variants.objectives import Unclipped


class Derived(RecurrentActorCriticPolicy):
    """A user's policy."""

    def evaluate_actions(self, *args: Any) -> Any:
        values, log_prob, entropy = super().evaluate_actions(*args)
        self.action_dist.distribution = None  # type: ignore[assignment]
        return values * 1.5, log_prob, entropy


def case(
    action_space: spaces.Space = BOX, space: spaces.Space = VECTOR, n_envs: int = 3, **arguments: Any
) -> tuple[Callable[[], Any], dict[str, Any]]:
    return lambda: ragged_envs(action_space, space, n_envs), arguments


def lstm(**arguments: Any) -> tuple[Callable[[], Any], dict[str, Any]]:
    return case(policy_kwargs={**SMALL, **arguments})


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    # sb3-contrib fails with MultiBinary.
    **{name: case(space) for name, space in ACTION_SPACES.items() if name != "MultiBinary"},
    "one environment": case(n_envs=1),
    "shared LSTM": lstm(shared_lstm=True, enable_critic_lstm=False),
    "no LSTM of the critic": lstm(enable_critic_lstm=False),
    "layers": lstm(n_lstm_layers=2),
    "dropout": lstm(n_lstm_layers=2, lstm_kwargs={"dropout": 0.2}),
    "separate features": lstm(share_features_extractor=False),
    "images": case(BOX, IMAGE, policy="CnnLstmPolicy"),
    "dictionaries": case(BOX, DICT, policy="MultiInputLstmPolicy"),
    "class": case(policy=RecurrentActorCriticPolicy),
    "derived class": case(policy=Derived),
    "gSDE": case(use_sde=True, sde_sample_freq=4),
    "target_kl": case(target_kl=1e-4, learning_rate=1e-2),
    "schedules": case(learning_rate=LinearSchedule(1e-3, 0, 1.0), clip_range=LinearSchedule(0.01, 0, 1.0)),
    "truncated minibatch": case(batch_size=21),
    "a minibatch of everything": case(batch_size=48),
    "raw advantages": case(normalize_advantage=False),
    "entropy": case(ent_coef=0.1, vf_coef=0.25, max_grad_norm=0.1),
    "VecNormalize": (lambda: VecNormalize(ragged_envs()), {}),
}


@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", CASES)
def test_same_weights_and_logs_as_sb3_contrib(name: str) -> None:
    make_env, arguments = CASES[name]
    logs = LogRecorder(), LogRecorder()
    theirs = small_recurrent(RecurrentPPO, make_env(), **arguments).learn(96, callback=logs[0])
    ours = small_recurrent(PPOClip, make_env(), fast=False, **arguments).learn(96, callback=logs[1])
    assert_same_weights(ours, theirs)
    assert (ours._n_updates, len(logs[1].updates)) == (theirs._n_updates, 6 // (1 if name == "one environment" else 3))
    for their_values, our_values in zip(*(log.updates for log in logs), strict=True):
        expected = {key: value for key, value in their_values.items() if not key.startswith("time/")}
        # Only the exact KL is logged in addition.
        assert set(our_values) - set(their_values) == {"train/kl"}
        for key, value in expected.items():
            assert our_values[key] == pytest.approx(value, rel=1e-5, abs=1e-7, nan_ok=True), key


def test_target_kl_ends_updates_early() -> None:
    make_env, arguments = CASES["target_kl"]
    assert small_recurrent(PPOClip, make_env(), **arguments).learn(144)._n_updates < 3 * 2


def test_the_episodes_have_different_lengths() -> None:
    """Otherwise, there would be no padding to ignore."""
    model = small_recurrent(PPOClip).learn(48)
    lengths = np.diff(np.flatnonzero(model.rollout_buffer.episode_starts[:16]))
    assert len(set(lengths.tolist())) > 1


class Seen(BaseCallback):
    """Records the LSTM states that callbacks see."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Any] = []

    def _on_step(self) -> bool:
        states, before = self.locals["lstm_states"], self.model._last_lstm_states  # type: ignore[attr-defined]
        both = [tensor.tolist() for pair in (*states, *before) for tensor in pair]
        self.steps.append((both, self.locals["episode_starts"].tolist()))
        return self.num_timesteps < 60


class Zeroed(BaseCallback):
    """Checks that the first rollout, and each rollout after a checkpoint, begins with states of zero."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        states: Any = self.model._last_lstm_states  # type: ignore[attr-defined]
        expected = small_recurrent(RecurrentPPO)._last_lstm_states
        for theirs, ours in zip(expected, states, strict=True):
            assert th.equal(th.stack(ours), th.stack(theirs))


def test_new_episodes_begin_with_states_of_zero(tmp_path: Path) -> None:
    callback = Zeroed()
    small_recurrent(PPOClip).learn(96, callback=[ExactCheckpointCallback(48, tmp_path), callback])
    assert callback.n_calls == 32
    resumed = PPOClip.resume(tmp_path, ragged_envs())
    resumed.learn(48, callback=callback, reset_num_timesteps=False)


def test_callbacks_see_the_states_and_may_end_a_rollout() -> None:
    seen, models = [], []
    for make in (partial(small_recurrent, RecurrentPPO), partial(small_recurrent, PPOClip, fast=False)):
        seen.append(Seen())
        models.append(make().learn(144, callback=seen[-1]))
        models[-1].learn(96, callback=seen[-1], reset_num_timesteps=False)
    assert len(seen[0].steps) == 20 + 1
    assert seen[0].steps == seen[1].steps
    for theirs, ours in zip(*(model._last_lstm_states for model in models), strict=True):
        assert th.equal(th.stack(ours), th.stack(theirs))


def test_predictions_follow_the_states() -> None:
    theirs, ours = small_recurrent(RecurrentPPO), small_recurrent(PPOClip)
    generator = np.random.default_rng(0)
    states: list[Any] = [None, None]
    for step in range(6):
        observations = generator.normal(size=(3, 3)).astype(np.float32)
        starts = np.array([step in (0, 3), step == 0, step in (0, 5)])
        acted = [
            model.predict(observations, state=state, episode_start=starts, deterministic=True)
            for model, state in zip((theirs, ours), states, strict=True)
        ]
        states = [state for _, state in acted]
        np.testing.assert_array_equal(acted[0][0], acted[1][0])
        np.testing.assert_array_equal(states[0], states[1])


@pytest.mark.parametrize("fast", [False, True])
def test_the_memory_of_other_environments_is_refused(fast: bool) -> None:
    model = PPOClip("MlpLstmPolicy", noise_envs(BOX), n_steps=8, batch_size=8, fast=fast)
    three, two = np.zeros((3, 3), np.float32), np.zeros((2, 3), np.float32)
    _, state = model.predict(three)
    model.predict(three, state, np.zeros(3, bool))
    with pytest.raises(
        ArgumentError, match=r"^state is for 3 environments, but there are 2 observations: pass the state"
    ):
        model.predict(two, state)
    _, state = model.predict(two)
    with pytest.raises(ArgumentError, match=r"^episode_start is for 3 environments, but there are 2 observations"):
        model.predict(two, state, np.zeros(3, bool))
    with pytest.raises(ArgumentError, match=r"^episode_start is for 3 environments, but there are 2 observations"):
        model.predict(two, episode_start=np.ones(3, bool))


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_training_goes_on_after_numbers_that_are_not_finite(memory: str, fast: bool) -> None:
    """The states of the critic are NaN when the error is raised, and 0 times NaN is NaN."""
    model = small_recurrent(PPOClip, policy_kwargs={**SMALL, "memory": memory}, fast=fast)
    good = deepcopy(model.get_parameters())
    for parameter in model.policy.lstm_critic.parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(NonFiniteError):
        model.learn(16)
    model.set_parameters(good)
    model.learn(64)
    assert all(state.isfinite().all() for states in model._last_lstm_states for state in states)


def test_memory_is_learned() -> None:
    """Without memory, a policy gets at most half of the rewards."""
    env = DummyVecEnv([lambda: Monitor(Recall())] * 8)
    arguments: dict[str, Any] = {"n_steps": 32, "batch_size": 128, "learning_rate": 1e-2}
    model = small_recurrent(PPOAdaptiveKL, env, desired_kl=0.02, **arguments)
    model.learn(5_000)
    assert np.mean([episode["r"] for episode in model.ep_info_buffer]) > 0.9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", [*VARIANTS, PPOCustom])
@pytest.mark.parametrize("updates", [None, SeparateUpdates(value_epochs=3)])
def test_every_class_trains(variant: Any, updates: Any) -> None:
    own: dict[str, Any] = {"objective": Unclipped()} if variant is PPOCustom else {}
    log = LogRecorder()
    model = small_recurrent(variant, updates=updates, **own).learn(144, callback=log)
    assert len(log.updates) == 3
    assert all(0 < values["train/kl"] < 1 for values in log.updates)
    before = small_recurrent(variant, updates=updates, **own).policy.state_dict()
    assert not th.equal(before["lstm_actor.weight_hh_l0"], model.policy.state_dict()["lstm_actor.weight_hh_l0"])


def test_separate_updates_need_networks_that_are_apart() -> None:
    with pytest.raises(ArgumentError, match=r"features_extractor.cnn.0.bias and 7 more belong to both"):
        small_recurrent(PPOClip, ragged_envs(BOX, IMAGE), policy="CnnLstmPolicy", updates=SeparateUpdates())


def test_binary_actions() -> None:
    model = small_recurrent(PPOAdaptiveKL, ragged_envs(ACTION_SPACES["MultiBinary"])).learn(96)
    assert 0 < model.logger.name_to_value["train/kl"] < 1
