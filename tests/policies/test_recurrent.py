"""Policies with an LSTM: parity with RecurrentPPO, bit for bit on the reference path; arguments; the KL."""

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from recurrence import SMALL, Recall, ragged_envs, small_recurrent
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from helpers import (
    ACTION_SPACES,
    BOX,
    DICT,
    IMAGE,
    VECTOR,
    LogRecorder,
    NoiseEnv,
    assert_same_weights,
    noise_envs,
    small,
    with_old_parameters,
)
from sb3_ppo_variants import ArgumentError, NonFiniteError, PPOAdaptiveKL, PPOClip, PPOFixedKL


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


def test_the_episodes_have_different_lengths() -> None:
    """Otherwise, there would be no padding to ignore."""
    model = small_recurrent(PPOClip).learn(48)
    lengths = np.diff(np.flatnonzero(model.rollout_buffer.episode_starts[:16]))
    assert len(set(lengths.tolist())) > 1


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


def test_the_memory_of_other_environments_is_refused() -> None:
    model = PPOClip("MlpLstmPolicy", noise_envs(BOX), n_steps=8, batch_size=8)
    three, two = np.zeros((3, 3), np.float32), np.zeros((2, 3), np.float32)
    _, state = model.predict(three)
    model.predict(three, state, np.zeros(3, bool))
    with pytest.raises(ArgumentError, match=r"^state is for 3 environments, but there are 2 observations"):
        model.predict(two, state)
    _, state = model.predict(two)
    with pytest.raises(ArgumentError, match=r"^episode_start is for 3 environments, but there are 2 observations"):
        model.predict(two, state, np.zeros(3, bool))
    with pytest.raises(ArgumentError, match=r"^episode_start is for 3 environments, but there are 2 observations"):
        model.predict(two, episode_start=np.ones(3, bool))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "MlpPolicy"])
def test_calls_that_forget_the_state_are_noticed_once(policy: str) -> None:
    model, observation = PPOClip(policy, noise_envs(BOX), n_steps=8, batch_size=8), np.zeros((2, 3), np.float32)
    begins, goes_on = np.ones(2, bool), np.zeros(2, bool)
    for _ in range(10):  # The second call of each episode has the state, and others begin episodes.
        _, state = model.predict(observation)
        model.predict(observation, state, goes_on)
        model.predict(observation, episode_start=begins)
    match = "without a state, so that the policy remembers nothing: pass the state"
    with pytest.warns(UserWarning, match=match) if policy == "MlpLstmPolicy" else nullcontext([0]) as caught:
        for _ in range(20):
            model.predict(observation, episode_start=goes_on)
    assert len(caught) == 1


@pytest.mark.parametrize("fast", [False, True])
def test_training_goes_on_after_numbers_that_are_not_finite(fast: bool) -> None:
    """The states of the critic are NaN when the error is raised, and 0 times NaN is NaN."""
    model = small_recurrent(PPOClip, fast=fast)
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


def test_binary_actions() -> None:
    model = small_recurrent(PPOAdaptiveKL, ragged_envs(ACTION_SPACES["MultiBinary"])).learn(96)
    assert 0 < model.logger.name_to_value["train/kl"] < 1


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "plain buffer": ({"rollout_buffer_class": RolloutBuffer}, "use RecurrentRolloutBuffer or a subclass"),
    "buffer of arrays": (
        {"rollout_buffer_class": RecurrentRolloutBuffer, "policy": "MultiInputLstmPolicy", "env": DICT},
        "use RecurrentDictRolloutBuffer or a subclass",
    ),
    "a vector for dictionaries": ({"policy": "MultiInputLstmPolicy"}, "use 'MlpLstmPolicy'"),
    "dictionaries for a vector": ({"env": DICT}, "needs other observations .*: use 'MultiInputLstmPolicy'"),
    "hidden size": ({"policy_kwargs": {"lstm_hidden_size": 0}}, "an integer >= 1"),
    "options": ({"policy_kwargs": {"lstm_kwargs": {"batch_first": True}}}, "'bias' and 'dropout'"),
    "entry": ({"policy_kwargs": {"lstm_size": 8}}, "lstm_hidden_size"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    arguments, message = BAD[name]
    env = ragged_envs(space=arguments.get("env", VECTOR))
    with pytest.raises(ArgumentError, match=message):
        small_recurrent(PPOClip, env, **{key: value for key, value in arguments.items() if key != "env"})


def walked(model: Any, n_envs: int) -> th.Tensor:
    """Compute the action means in all states of a rollout step by step, as ``predict`` does."""
    buffer, policy = model.rollout_buffer, model.policy
    policy.set_training_mode(False)
    # The LSTM states before the first step of the rollout.
    states = [
        buffer.to_torch(array.reshape(n_envs, -1, *array.shape[1:])[:, 0]).swapaxes(0, 1).contiguous()
        for array in (buffer.hidden_states_pi, buffer.cell_states_pi)
    ]

    def at(array: np.ndarray, step: int) -> th.Tensor:
        return buffer.to_torch(array.reshape(n_envs, -1, *array.shape[1:])[:, step])

    means = []
    for step in range(buffer.buffer_size):
        observation = at(buffer.observations, step)
        with th.no_grad():
            distribution, states = policy.get_distribution(observation, tuple(states), at(buffer.episode_starts, step))
        means.append(distribution.distribution.mean)
    return th.stack(means, dim=1).flatten(0, 1)


def test_of_an_update_by_hand_and_by_monte_carlo() -> None:
    log = LogRecorder()
    model = small_recurrent(PPOClip).learn(96, callback=log)
    (old_mean, old_std), mean = model.old_policy.parameters, walked(model, 3)
    std = model.policy.log_std.exp().detach()
    by_hand = th.log(std / old_std) + (old_std**2 + (old_mean - mean) ** 2) / (2 * std**2) - 0.5
    logged = log.updates[-1]["train/kl"]
    assert logged == pytest.approx(by_hand.sum(dim=1).mean().item(), rel=1e-3)
    old, new = th.distributions.Normal(old_mean, old_std), th.distributions.Normal(mean, std)
    drawn = old.sample((20_000,))
    estimates = (old.log_prob(drawn) - new.log_prob(drawn)).sum(dim=-1).mean(dim=1)
    error = estimates.std() / len(estimates) ** 0.5
    assert abs(estimates.mean().item() - logged) < 4 * error


def _contribs_loss(model: Any, data: Any, old_parameters: Any, kl_coef: float) -> th.Tensor:
    """Compute sb3-contrib's loss on padded sequences, with a penalty instead of clipping."""
    mask = data.mask > 1e-8
    values, log_prob, _ = model.policy.evaluate_actions(
        data.observations, data.actions, data.lstm_states, data.episode_starts
    )
    new = model.policy.action_dist.distribution
    advantages = data.advantages
    advantages = (advantages - advantages[mask].mean()) / (advantages[mask].std() + 1e-8)
    surrogate = (advantages * th.exp(log_prob - data.old_log_prob))[mask].mean()
    old = th.distributions.Normal(*old_parameters)
    kept = th.distributions.Normal(new.mean[mask], new.stddev[mask])
    kl = th.distributions.kl_divergence(old, kept).sum(dim=1).mean()
    value_loss = ((data.returns - values.flatten()) ** 2)[mask].mean()
    return -surrogate + kl_coef * kl + model.vf_coef * value_loss


def test_a_penalty_against_a_plain_loop() -> None:
    ours = small_recurrent(PPOFixedKL, kl_coef=3.0, n_epochs=3)
    ours.learn(48)
    plain = small_recurrent(PPOFixedKL, kl_coef=3.0, n_epochs=3)
    plain.train = lambda: None
    plain.learn(48)
    plain.policy.set_training_mode(True)
    for _ in range(3):
        for data, _, old_parameters in with_old_parameters(plain, 16):
            plain.policy.optimizer.zero_grad()
            _contribs_loss(plain, data, old_parameters, 3.0).backward()
            th.nn.utils.clip_grad_norm_(plain.policy.parameters(), 0.5)
            plain.policy.optimizer.step()
    for key, weight in plain.policy.state_dict().items():
        th.testing.assert_close(ours.policy.state_dict()[key], weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy", "MaskableMlpPolicy", "MaskableMlpLstmPolicy"])
def test_an_observation_with_its_info(policy: str) -> None:
    model = small(env=noise_envs(spaces.Discrete(2)), policy=policy)
    masks = {"action_masks": np.ones((1, 2), bool)} if "Maskable" in policy else {}
    with pytest.raises(ArgumentError, match=r"^observation is \(observation, info\), by mixing Gym API with SB3's"):
        model.predict(NoiseEnv(spaces.Discrete(2)).reset(), episode_start=np.ones(1, bool), **masks)
