"""The KL of policies with LSTMs, over steps but not over the padding of sequences."""

from typing import Any

import numpy as np
import pytest
import torch as th
from recurrence import SMALL, ragged_envs, small_recurrent

from helpers import ACTION_SPACES, DICT, IMAGE, LogRecorder, with_old_parameters
from sb3_ppo_variants import PPOAdaptiveKL, PPOClip, PPOFixedKL
from sb3_ppo_variants.engines.reference import parameters_in_rollout
from sb3_ppo_variants.policies.families import kind_of

CASES: dict[str, dict[str, Any]] = {
    "vectors": {},
    "one environment": {"env": lambda: ragged_envs(n_envs=1)},
    "layers": {"policy_kwargs": {**SMALL, "n_lstm_layers": 2}},
    "shared LSTM": {"policy_kwargs": {**SMALL, "shared_lstm": True, "enable_critic_lstm": False}},
    "images": {"env": lambda: ragged_envs(space=IMAGE), "policy": "CnnLstmPolicy"},
    "dictionaries": {"env": lambda: ragged_envs(space=DICT), "policy": "MultiInputLstmPolicy"},
    "long rollouts": {"n_steps": 300, "batch_size": 300, "learning_rate": 1e-4},
}


def trained(name: str, cls: Any = PPOClip, **more: Any) -> Any:
    arguments = {**CASES[name], **more}
    env = arguments.pop("env", ragged_envs)()
    return small_recurrent(cls, env, **arguments).learn(3 * arguments.get("n_steps", 16) * env.num_envs)


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
        observation: Any = (
            {key: at(array, step) for key, array in buffer.observations.items()}
            if isinstance(buffer.observations, dict)
            else at(buffer.observations, step)
        )
        with th.no_grad():
            distribution, states = policy.get_distribution(observation, tuple(states), at(buffer.episode_starts, step))
        means.append(distribution.distribution.mean)
    return th.stack(means, dim=1).flatten(0, 1)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_pass_over_a_rollout_finds_what_steps_find(name: str, read: bool) -> None:
    """This holds before the buffer is first read, when it is not yet flattened, and afterwards."""
    model = trained(name)
    kind, buffer = kind_of(model.policy), model.rollout_buffer
    if not read:
        model.train = lambda: None
        model.learn(buffer.buffer_size * buffer.n_envs, reset_num_timesteps=False)
        assert not buffer.generator_ready
        _, (mean, _) = parameters_in_rollout(kind, kind.distributions(buffer))
        # This policy has collected the rollout.
        th.testing.assert_close(mean, model.old_policy.parameters[0], rtol=1e-4, atol=1e-6)
        next(buffer.get(4))
    _, (mean, _) = parameters_in_rollout(kind, kind.distributions(buffer))
    th.testing.assert_close(mean, walked(model, buffer.n_envs), rtol=1e-4, atol=1e-6)


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


def test_of_categories_by_hand() -> None:
    log = LogRecorder()
    model = small_recurrent(PPOAdaptiveKL, ragged_envs(ACTION_SPACES["Discrete"]), desired_kl=1e-3).learn(
        96, callback=log
    )
    kind = kind_of(model.policy)
    _, (logits,) = parameters_in_rollout(kind, kind.distributions(model.rollout_buffer))
    old = model.old_policy.parameters[0].softmax(dim=1)
    kl = (old * (old.log() - logits.softmax(dim=1).log())).sum(dim=1).mean().item()
    assert log.updates[-1]["train/kl"] == pytest.approx(kl, rel=1e-3)


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
