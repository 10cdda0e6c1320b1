"""How far the policy has moved from the one that collected the rollout."""

from collections.abc import Callable, Iterator

import torch as th
from stable_baselines3.common.distributions import Distribution

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import ExactKL, MissingKLError, Parameters, concatenate, exact_kl
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.rollouts.buffer import Samples, WithParameters
from sb3_ppo_variants.updates.plan import UpdatePlan


class RolloutKL:
    """The exact KL(old || new), where old is the policy that collected the rollout.

    :param kind: evaluates the policy
    :param old: the parameters of the old distributions, one row per row of the rollout
    :param distributions: returns the policy's distributions in all states of the rollout, in row order and in chunks
    """

    def __init__(self, kind: PolicyKind, old: Parameters, distributions: Callable[[], Iterator[Distribution]]):
        self._kind = kind
        self._old = old
        self._distributions = distributions

    @classmethod
    def of(cls, plan: UpdatePlan, distributions: Callable[[], Iterator[Distribution]]) -> "RolloutKL | None":
        """Create the KL of an update. Call this before the update changes the policy.

        :return: ``None`` if the policy's distribution has no known KL and the objective does not need one
        :raises MissingKLError: if the policy's distribution has no known KL and the objective needs one
        """
        buffer = plan.buffer
        old = buffer.old_parameters if isinstance(buffer, WithParameters) else None
        if old is None:  # Another loop collected the rollout, or the KL is not known.
            try:
                _, old = parameters_in_rollout(plan.kind, distributions())
            except MissingKLError:
                if plan.objective.needs_kl:
                    raise
                return None  # Without a penalty the KL is only logged.
            if isinstance(buffer, WithParameters):
                buffer.old_parameters = old
        return cls(plan.kind, old, distributions)

    def of_minibatch(self, samples: Samples) -> th.Tensor:
        """Compute KL(old || new) in the states of a minibatch that the policy has just evaluated.

        :return: shape ``(batch,)``, differentiable with respect to the policy
        :raises ArgumentError: if the minibatches of the rollout buffer lack the old parameters
        """
        if samples.old_parameters is None:
            raise ArgumentError(
                "rollout_buffer_class: this buffer's minibatches come without the parameters of the old policy, which "
                "a KL penalty needs. Make each minibatch of its get() by one call of _get_samples(), and let that "
                "return minibatches of SB3's type, such as RolloutBufferSamples"
            )
        kl, new = self._kind.evaluated_parameters(samples)
        return kl.divergence(samples.old_parameters, new)

    def of_rollout(self) -> float:
        """Compute the mean of KL(old || new) over all states of the rollout."""
        kl, new = parameters_in_rollout(self._kind, self._distributions())
        return kl.divergence(self._old, new).mean().item()


def parameters_in_rollout(kind: PolicyKind, distributions: Iterator[Distribution]) -> tuple[ExactKL, Parameters]:
    """Return the KL and the current parameters of the policy's distributions, in evaluation mode as during rollouts.

    :param distributions: at least one chunk; the iterator must compute chunks lazily, so that it runs in this mode
    """
    chunks = []
    training = kind.policy.training
    kind.policy.set_training_mode(False)
    try:
        with th.no_grad():
            for distribution in distributions:
                kl = exact_kl(distribution)
                chunks.append(kl.parameters(distribution))
        return kl, concatenate(chunks)
    finally:
        kind.policy.set_training_mode(training)
