"""A policy to stay close to that is not the policy of the rollout, for :class:`~sb3_ppo_variants.objectives.EWMA`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch as th
from torch import nn
from torch.nn.utils import parameters_to_vector


class ProximalPolicy(nn.Module):
    """The average of a policy's weights after each gradient step. The weights of earlier steps decay.

    :param policy: the policy, whose current weights are the first of the average
    """

    average: th.Tensor
    total_weight: th.Tensor

    def __init__(self, policy: nn.Module):
        super().__init__()
        self.register_buffer("average", parameters_to_vector(policy.parameters()).detach().clone())
        self.register_buffer("total_weight", th.ones((), dtype=th.float64))

    def follow(self, policy: nn.Module, decay: float) -> None:
        """Add the current weights of the policy to the average, after the earlier ones have decayed."""
        before = decay * float(self.total_weight)
        current = parameters_to_vector(policy.parameters()).detach()
        self.average.mul_(before / (before + 1)).add_(current / (before + 1))
        self.total_weight.fill_(before + 1)

    @contextmanager
    def in_place_of(self, policy: nn.Module) -> Iterator[None]:
        """Give the policy the averaged weights while the context is active."""
        parameters = [*policy.parameters()]
        current = [parameter.data for parameter in parameters]
        averages = th.split(self.average, [tensor.numel() for tensor in current])
        try:
            for parameter, tensor in zip(parameters, averages, strict=True):
                parameter.data = tensor.view_as(parameter)
            yield
        finally:
            for parameter, tensor in zip(parameters, current, strict=True):
                parameter.data = tensor
