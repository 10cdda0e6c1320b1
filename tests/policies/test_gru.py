"""Policies with a GRU compute what a loop over PyTorch's GRU computes, which forgets where episodes begin."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from masked_envs import DISCRETE
from recurrence import SMALL, small_recurrent
from torch import nn

from helpers import noise_envs
from sb3_ppo_variants import ArgumentError, PPOClip

GRU: dict[str, Any] = {**SMALL, "memory": "gru"}


def small_gru(cls: Any = PPOClip, env: Any = None, policy: Any = "MlpLstmPolicy", **arguments: Any) -> Any:
    return small_recurrent(cls, env, policy, **{"policy_kwargs": GRU, **arguments})


def in_steps(array: np.ndarray) -> th.Tensor:
    """Return the rows of a rollout in three environments with steps as the first dimension."""
    return th.as_tensor(array.reshape(3, -1, *array.shape[1:])).swapaxes(0, 1)


def looped(gru: Any, buffer: Any, cut: int = -1) -> th.Tensor:
    """Compute the outputs of a GRU in a rollout step by step, beginning with zeros; no gradient passes before a row."""
    plain = nn.GRU(gru.input_size, gru.hidden_size, gru.num_layers)
    plain._parameters = gru._parameters
    observations, starts = in_steps(buffer.observations), in_steps(buffer.episode_starts)
    outputs = []
    for env in range(3):
        hidden = th.zeros(gru.num_layers, 1, gru.hidden_size)
        for step in range(buffer.buffer_size):
            if starts[step, env]:
                hidden = th.zeros_like(hidden)
            if env * buffer.buffer_size + step == cut:
                hidden = hidden.detach()
            output, hidden = plain(observations[step, env].reshape(1, 1, -1), hidden)
            outputs.append(output[0, 0])
    return th.stack(outputs)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("fast", [False, True])
def test_a_rollout_of_a_plain_loop(fast: bool, layers: int) -> None:
    model = small_gru(fast=fast, policy_kwargs={**GRU, "n_lstm_layers": layers})
    policy = deepcopy(model.policy)
    model.train = lambda: None
    model.learn(48)
    buffer = model.rollout_buffer
    next(buffer.get(48))
    assert 3 < buffer.episode_starts.sum() < 48
    with th.no_grad():
        means = policy.action_net(policy.mlp_extractor.forward_actor(looped(policy.lstm_actor, buffer)))
        values = policy.value_net(policy.mlp_extractor.forward_critic(looped(policy.lstm_critic, buffer)))
    th.testing.assert_close(model.old_policy.parameters[0], means, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(buffer.values, values, rtol=1e-4, atol=1e-6)
    assert not buffer.cell_states_pi.any()
    assert buffer.hidden_states_pi.any()


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("fast", [False, True])
def test_an_update_of_a_plain_loop(fast: bool) -> None:
    """The buffer reads a rollout from a random row on, so sequences are cut there and begin with the stored states."""
    model = small_gru(fast=fast, batch_size=48, n_epochs=1)
    policy, train = deepcopy(model.policy), model.train
    model.train = lambda: None
    model.learn(48)
    buffer = model.rollout_buffer
    np.random.seed(5)
    cut = np.random.randint(48)
    next(buffer.get(48))
    np.random.seed(5)
    train()
    policy.set_training_mode(True)
    optimizer = th.optim.Adam(policy.parameters(), 1e-3, eps=1e-5)
    features = {name: looped(getattr(policy, name), buffer, cut) for name in ("lstm_actor", "lstm_critic")}
    mean = policy.action_net(policy.mlp_extractor.forward_actor(features["lstm_actor"]))
    values = policy.value_net(policy.mlp_extractor.forward_critic(features["lstm_critic"])).flatten()
    log_prob = th.distributions.Normal(mean, policy.log_std.exp()).log_prob(th.as_tensor(buffer.actions)).sum(dim=1)
    advantages, returns, old = (
        th.as_tensor(array.reshape(48)) for array in (buffer.advantages, buffer.returns, buffer.log_probs)
    )
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = th.exp(log_prob - old)
    surrogate = th.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    (-surrogate + 0.5 * ((returns - values) ** 2).mean()).backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()
    for key, weight in policy.state_dict().items():
        th.testing.assert_close(model.policy.state_dict()[key], weight, rtol=1e-4, atol=1e-6)


def test_dropout_takes_the_reference_path() -> None:
    kwargs = {**GRU, "n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.1}}
    with pytest.raises(ArgumentError, match="has dropout"):
        small_gru(fast=True, policy_kwargs=kwargs)
    small_gru(policy_kwargs=kwargs).learn(48)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"^policy_kwargs\['memory'\]='rnn' is not allowed; allowed: 'lstm' or 'gr"):
        small_gru(policy_kwargs={"memory": "rnn"})
    with pytest.raises(ArgumentError, match=r"^policy_kwargs has no entry 'memory'"):
        PPOClip("MlpPolicy", noise_envs(DISCRETE), policy_kwargs={"memory": "gru"})
    with pytest.raises(ArgumentError, match=r"has no entry 'lstm': .*lstm_kwargs, .*memory$"):
        small_gru(policy_kwargs={"lstm": "gru"})
