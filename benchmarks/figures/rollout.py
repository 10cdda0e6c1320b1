"""How far a policy has moved from the one that collected its rollout, sample by sample."""

from typing import NamedTuple

import numpy as np
import torch as th

from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.rollout import in_rows


class Moved(NamedTuple):
    """Arrays of shape ``(samples,)``, with an element for each step of the rollout."""

    log_ratio: np.ndarray
    """log pi(a|s) - log pi_old(a|s) of the action taken."""
    kl: np.ndarray
    """The exact KL(old || new) of the state, in nats."""
    advantages: np.ndarray
    """The advantages of the rollout, with mean 0 and standard deviation 1."""


def moved(model: PPOBase) -> Moved:
    """Compute how far the policy has moved. Its observation and action spaces must be ``Box`` spaces."""
    buffer, policy = model.rollout_buffer, model.policy
    old = None if model.old_policy is None else model.old_policy.of(buffer)
    assert old is not None
    observations, actions = (th.as_tensor(in_rows(buffer, a)) for a in (buffer.observations, buffer.actions))
    with th.no_grad():
        distribution = policy.get_distribution(observations)
        log_prob = distribution.log_prob(actions).double().numpy()
        divergences = divergences_of(distribution)
        kl = divergences.kl(old, divergences.parameters(distribution)).double().numpy()
    old_log_prob, advantages = (
        in_rows(buffer, array).ravel().astype(np.float64) for array in (buffer.log_probs, buffer.advantages)
    )
    return Moved(log_prob - old_log_prob, kl, (advantages - advantages.mean()) / advantages.std())
