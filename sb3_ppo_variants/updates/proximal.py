"""A policy to stay close to that is not the policy of the rollout, for :class:`~sb3_ppo_variants.objectives.EWMA`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch as th
from torch import nn


class ProximalPolicy(nn.Module):
    """The average of a policy's parameters after each gradient step. Those of earlier steps decay.

    :param parameters: the parameters that the steps change, whose current values are the first of the average
    """

    average: th.Tensor
    total_weight: th.Tensor

    def __init__(self, parameters: Sequence[nn.Parameter]):
        super().__init__()
        self.register_buffer("average", _join(parameters))
        self.register_buffer("total_weight", th.ones((), dtype=th.float64))

    def follow(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        """Add the current values of the parameters to the average, after the earlier ones have decayed."""
        before = decay * float(self.total_weight)
        self.average.mul_(before / (before + 1)).add_(_join(parameters) / (before + 1))
        self.total_weight.fill_(before + 1)

    @contextmanager
    def in_place_of(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Give the parameters their averaged values while the context is active."""
        current = [parameter.data for parameter in parameters]
        averages = th.split(self.average, [tensor.numel() for tensor in current])
        try:
            for parameter, tensor in zip(parameters, averages, strict=True):
                parameter.data = tensor.view_as(parameter)
            yield
        finally:
            for parameter, tensor in zip(parameters, current, strict=True):
                parameter.data = tensor


def _join(parameters: Sequence[nn.Parameter]) -> th.Tensor:
    return th.cat([parameter.detach().flatten() for parameter in parameters])
