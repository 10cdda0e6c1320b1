"""Distributions of continuous actions in all kinds of policies: those of PyTorch, of what a plain loop computes."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import DISCRETE, masked_envs
from recurrence import SMALL, ragged_envs
from torch import nn
from torch.distributions import AffineTransform, Beta, Independent, Normal, TanhTransform, TransformedDistribution
from torch.distributions.kl import kl_divergence

from helpers import small
from sb3_ppo_variants import ArgumentError, PPOClip

NAMES: dict[str, dict[str, Any]] = {
    "beta": {"distribution": "beta"},
    "squashed": {"distribution": "squashed_gaussian"},
    "state": {"std": "state"},
}
MEMORIES: dict[str, dict[str, Any]] = {"LSTM": SMALL, "GRU": {**SMALL, "memory": "gru"}}
WIDE = spaces.Box(np.array([-1, 2], np.float32), np.array([1, 5], np.float32))


def looped(memory: nn.RNNBase, observations: np.ndarray, starts: np.ndarray) -> th.Tensor:
    """Return the outputs of an LSTM or a GRU, which begins each episode with zeros, in the order of the rows."""
    plain = (nn.GRU if isinstance(memory, nn.GRU) else nn.LSTM)(memory.input_size, memory.hidden_size)
    plain.load_state_dict(memory.state_dict())
    edges = [*np.flatnonzero(starts), len(starts)]
    return th.cat([plain(th.as_tensor(observations[start:end]))[0] for start, end in pairwise(edges)])


def from_pytorch(name: str, outputs: th.Tensor, policy: Any) -> tuple[Any, Any]:
    """Return PyTorch's distributions of what the policy draws, and those before they are squashed or scaled."""
    first, second = outputs.chunk(2, dim=1) if name != "squashed" else (outputs, policy.log_std)
    if name == "beta":
        inner: Any = Beta(1 + nn.functional.softplus(first), 1 + nn.functional.softplus(second))
        drawn: Any = TransformedDistribution(inner, AffineTransform(-1.0, 2.0))
    else:
        inner = Normal(first, second.exp())
        drawn = TransformedDistribution(inner, TanhTransform()) if name == "squashed" else inner
    return Independent(drawn, 1), Independent(inner, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", NAMES)
def test_rollouts_and_their_kl_are_those_of_a_plain_loop(name: str, memory: str, fast: bool) -> None:
    kwargs = {**MEMORIES[memory], **NAMES[name]}
    model = small(PPOClip, ragged_envs(WIDE), "MlpLstmPolicy", policy_kwargs=kwargs, fast=fast, learning_rate=1e-2)
    before, buffer = deepcopy(model.policy), model.rollout_buffer
    model.learn(48)
    rows = {key: buffer.__dict__[key].reshape(48, -1) for key in ("observations", "actions", "log_probs")}
    starts = buffer.episode_starts.reshape(3, -1)
    assert 3 < starts.sum() < 48
    found = []
    for policy in (before, model.policy):
        with th.no_grad():
            latent = looped(policy.lstm_actor, rows["observations"], starts.ravel())
            found.append(from_pytorch(name, policy.action_net(policy.mlp_extractor.policy_net(latent)), policy))
    (old, old_inner), (_, new_inner) = found
    th.testing.assert_close(
        th.as_tensor(rows["log_probs"]).flatten(), old.log_prob(th.as_tensor(rows["actions"])), rtol=1e-4, atol=1e-4
    )
    kl = kl_divergence(old_inner, new_inner).mean().item()
    assert kl > 1e-4
    assert model.logger.name_to_value["train/kl"] == pytest.approx(kl, rel=1e-3)


REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (masked_envs(DISCRETE), "MaskableMlpPolicy", {"std": "state"}, "needs a Box action space, .* Discrete"),
    (ragged_envs(DISCRETE), "MlpLstmPolicy", NAMES["beta"], r"distribution=Beta\(\) needs a Box action space"),
    (ragged_envs(), "MlpLstmPolicy", {"distribution": "cauchy"}, r"\['distribution'\]='cauchy' is not allowed"),
]


@pytest.mark.parametrize(("env", "policy", "kwargs", "message"), REFUSED)
def test_what_does_not_fit_is_refused(env: Any, policy: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small(env=env, policy=policy, policy_kwargs=kwargs)
