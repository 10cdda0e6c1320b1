"""How far the policy has moved from the one that collected the rollout."""

from collections.abc import Callable, Iterator
from itertools import islice

import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs

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
    :param observations: returns all observations of the rollout in the order of their rows, in chunks
    """

    def __init__(
        self, kl: ExactKL, kind: PolicyKind, old: Parameters, observations: Callable[[], Iterator[PyTorchObs]]
    ):
        self._kl = kl
        self._kind = kind
        self._old = old
        self._observations = observations

    @classmethod
    def of(cls, plan: UpdatePlan, observations: Callable[[], Iterator[PyTorchObs]]) -> "RolloutKL | None":
        """The KL of an update that has not changed the policy yet.

        :return: ``None`` if the policy's distribution has no known KL, which the objective does not need
        :raises MissingKLError: if it has none and the objective needs one
        """
        buffer = plan.buffer
        old = buffer.old_parameters if isinstance(buffer, WithParameters) else None
        try:
            kl, now = parameters_in_rollout(plan.kind, observations() if old is None else islice(observations(), 1))
            if old is None:  # The rollout was not collected by our loop.
                old = now
                if isinstance(buffer, WithParameters):
                    buffer.old_parameters = old
        except MissingKLError:
            if plan.objective.needs_kl:
                raise
            return None  # Without a penalty the KL is only logged.
        return cls(kl, plan.kind, old, observations)

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
        new = self._kl.parameters(self._kind.evaluated_distribution(samples))
        return self._kl.divergence(samples.old_parameters, new)

    def of_rollout(self) -> float:
        """The mean of KL(old || new) over all states of the rollout."""
        _, new = parameters_in_rollout(self._kind, self._observations())
        return self._kl.divergence(self._old, new).mean().item()


def parameters_in_rollout(kind: PolicyKind, observations: Iterator[PyTorchObs]) -> tuple[ExactKL, Parameters]:
    """The parameters of the policy's distributions now, in evaluation mode as during rollouts, and their KL.

    :param observations: in chunks, of which there is at least one
    """
    chunks = []
    training = kind.policy.training
    kind.policy.set_training_mode(False)
    try:
        with th.no_grad():
            for chunk in observations:
                distribution = kind.distribution(chunk)
                kl = exact_kl(distribution)
                chunks.append(kl.parameters(distribution))
        return kl, concatenate(chunks)
    finally:
        kind.policy.set_training_mode(training)
