"""How far the policy has moved from the one that collected the rollout."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.kl import ExactKL, Parameters, concatenate, exact_kl


class RolloutKL:
    """The exact KL(old || new), where old is the policy at the time of construction.

    Construct it after a rollout and before the first optimisation step. Old parameters are those of the policy in
    evaluation mode, in which the rollout was collected.

    :param policy: the policy that will be trained
    :param buffer: the full rollout buffer
    :param observations: returns all its observations in the order of their rows, in chunks
    :raises MissingKLError: if the policy's action distribution has no registered KL
    """

    def __init__(
        self, policy: ActorCriticPolicy, buffer: RolloutBuffer, observations: Callable[[], Iterator[PyTorchObs]]
    ):
        self._policy = policy
        self._buffer = buffer
        self._observations = observations
        self._kl, self._old = self._parameters_in_rollout()

    def of_minibatch(self, rows: np.ndarray | None, observations: PyTorchObs) -> th.Tensor:
        """KL(old || new) in the states of a minibatch, right after ``policy.evaluate_actions`` on it.

        :param rows: the minibatch's row numbers in the rollout
        :param observations: the minibatch's observations
        :return: shape ``(batch,)``, differentiable in the policy
        :raises ArgumentError: if the rollout buffer does not show its rows
        """
        if rows is None:
            refuse(
                "rollout_buffer_class",
                type(self._buffer),
                "with a KL penalty, one whose get() makes each minibatch by one call of _get_samples()",
            )
        where = th.as_tensor(rows, device=self._old[0].device)
        old = tuple(tensor[where] for tensor in self._old)
        return self._kl.divergence(old, self._kl.parameters(self._evaluated(observations)))

    def of_rollout(self) -> float:
        """The mean of KL(old || new) over all states of the rollout."""
        _, new = self._parameters_in_rollout()
        return self._kl.divergence(self._old, new).mean().item()

    def _parameters_in_rollout(self) -> tuple[ExactKL, Parameters]:
        chunks = []
        with th.no_grad(), _evaluation_mode(self._policy):
            for observations in self._observations():
                distribution = self._policy.get_distribution(observations)
                kl = exact_kl(distribution)
                chunks.append(kl.parameters(distribution))
        return kl, concatenate(chunks)

    def _evaluated(self, observations: PyTorchObs) -> Distribution:
        # SB3's evaluate_actions leaves its distribution in action_dist, which saves a second forward pass. A policy
        # that replaces either method may not.
        cls = type(self._policy)
        sb3s_own = all(
            getattr(cls, method, None) is getattr(ActorCriticPolicy, method)
            for method in ("evaluate_actions", "_get_action_dist_from_latent")
        )
        return self._policy.action_dist if sb3s_own else self._policy.get_distribution(observations)


@contextmanager
def _evaluation_mode(policy: ActorCriticPolicy) -> Iterator[None]:
    training = policy.training
    policy.set_training_mode(False)
    try:
        yield
    finally:
        policy.set_training_mode(training)
