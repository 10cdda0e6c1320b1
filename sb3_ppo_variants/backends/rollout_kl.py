"""How far the policy has moved from the one that collected the rollout."""

from collections.abc import Callable, Iterator
from itertools import islice

import torch as th
from stable_baselines3.common.distributions import Distribution

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import ExactKL, MissingKLError, Parameters, concatenate, exact_kl
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.rollouts.buffer import Samples, WithParameters
from sb3_ppo_variants.updates.plan import UpdatePlan


class RolloutKL:
    """The exact KL(old || new), where old is the policy that collected the rollout.

    :param kl: the exact KL of the policy's distribution
    :param kind: evaluates the policy
    :param old: the parameters of the old distributions, a row for each row of the rollout
    :param distributions: returns the policy's distributions in all states of the rollout in the order of its rows, in
        chunks
    """

    def __init__(
        self, kl: ExactKL, kind: PolicyKind, old: Parameters, distributions: Callable[[], Iterator[Distribution]]
    ):
        self._kl = kl
        self._kind = kind
        self._old = old
        self._distributions = distributions

    @classmethod
    def of(cls, plan: UpdatePlan, distributions: Callable[[], Iterator[Distribution]]) -> "RolloutKL | None":
        """The KL of an update that has not changed the policy yet.

        :return: ``None`` if the policy's distribution has no known KL, which the objective does not need
        :raises MissingKLError: if it has none and the objective needs one
        """
        buffer = plan.buffer
        old = buffer.old_parameters if isinstance(buffer, WithParameters) else None
        try:
            chunks = distributions() if old is None else islice(distributions(), 1)
            kl, now = parameters_in_rollout(plan.kind, chunks)
            if old is None:  # The rollout was not collected by our loop.
                old = now
                if isinstance(buffer, WithParameters):
                    buffer.old_parameters = old
        except MissingKLError:
            if plan.objective.needs_kl:
                raise
            return None  # Without a penalty the KL is only logged.
        return cls(kl, plan.kind, old, distributions)

    def of_minibatch(self, samples: Samples) -> th.Tensor:
        """KL(old || new) in the states of a minibatch, right after the policy has evaluated it.

        :return: shape ``(batch,)``, differentiable in the policy
        :raises ArgumentError: if the rollout buffer leaves out the old parameters
        """
        if samples.old_parameters is None:
            raise ArgumentError(
                "rollout_buffer_class: this buffer's minibatches come without the parameters of the old policy, which "
                "a KL penalty needs. Make each minibatch of its get() by one call of _get_samples(), as SB3's does"
            )
        new = self._kind.evaluated_parameters(samples, self._kl)
        return self._kl.divergence(samples.old_parameters, new)

    def of_rollout(self) -> float:
        """The mean of KL(old || new) over all states of the rollout."""
        _, new = parameters_in_rollout(self._kind, self._distributions())
        return self._kl.divergence(self._old, new).mean().item()


def parameters_in_rollout(kind: PolicyKind, distributions: Iterator[Distribution]) -> tuple[ExactKL, Parameters]:
    """The parameters of the policy's distributions now, in evaluation mode as during rollouts, and their KL.

    :param distributions: in chunks, of which there is at least one, and which are made in this mode
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
