"""All kinds of policies: which is a policy's, and the aliases of its class."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.policies.masked import Masked
from sb3_ppo_variants.policies.masked_recurrent import MaskedRecurrent
from sb3_ppo_variants.policies.recurrent import Recurrent

# A kind comes before those from whose policies and buffers its own are derived.
KINDS: tuple[type[PolicyKind], ...] = (MaskedRecurrent, Recurrent, Masked, PolicyKind)
ALIASES: Mapping[str, type[BasePolicy]] = {
    alias: policy for kind in reversed(KINDS) for alias, policy in zip(kind.aliases, kind.policies, strict=True)
}


def kind_of_class(cls: type[BasePolicy] | type[RolloutBuffer]) -> type[PolicyKind]:
    """Find the kind of a class of policies or of rollout buffers."""
    for kind in KINDS:
        if issubclass(cls, (*kind.policies, *kind.buffers)):
            return kind
    return PolicyKind


def kind_of(policy: ActorCriticPolicy) -> PolicyKind:
    """Find the kind of a policy, which evaluates it. ``torch.compile`` may have wrapped it."""
    own: ActorCriticPolicy = getattr(policy, "_orig_mod", policy)
    return kind_of_class(type(own))(policy)


@contextmanager
def first_state(policy: ActorCriticPolicy) -> Iterator[tuple[Distribution, th.Tensor]]:
    """Compute the distribution and the value, shape ``(1, 1)``, in a random first state of an episode.

    While the context is active, the policy is in evaluation mode. After it, it is as it was before.
    """
    space = deepcopy(policy.observation_space)  # Sampling advances the random generator of a space.
    observation, _ = policy.obs_to_tensor(space.sample())
    training, distribution = policy.training, policy.action_dist
    policy.set_training_mode(False)
    policy.action_dist = copy(distribution)  # It keeps the graph of what it computes, and graphs cannot be copied.
    try:
        yield kind_of(policy).of_first_state(observation)
    finally:
        policy.action_dist = distribution
        policy.set_training_mode(training)


def check_kl(policy: ActorCriticPolicy) -> None:
    """Check that the KL of a policy's distributions is known.

    :raises MissingKLError: if it is not
    """
    kind_of(policy).check_distribution()
    divergences_of(policy.action_dist)
