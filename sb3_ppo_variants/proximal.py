"""The policy that an EWMA stays close to: an average of the parameters after each gradient step."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
        self.register_buffer("average", join(parameters))
        self.register_buffer("total_weight", th.ones((), dtype=th.float64, device="cpu"))
        self._last: th.Tensor | None = None

    def load_state_dict(self, *args: Any, **arguments: Any) -> Any:
        """Load an average, which is that of parameters loaded with it."""
        self._last = None
        return super().load_state_dict(*args, **arguments)

    def remember(self, parameters: Sequence[nn.Parameter]) -> None:
        """Remember the parameters with which an update ends."""
        self._last = join(parameters)

    def has_followed(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether it has followed steps that led to these parameters. They may have been set since."""
        if float(self.total_weight) == 1:
            return False
        return self._last is None or th.equal(self._last, join(parameters))

    def follow(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        """Add the current values of the parameters to the average, after the earlier ones have decayed."""
        before = decay * float(self.total_weight)
        self.average.mul_(before / (before + 1)).add_(join(parameters) / (before + 1))
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


def join(tensors: Iterable[th.Tensor]) -> th.Tensor:
    """Concatenate tensors of any shapes into a new vector."""
    return th.cat([tensor.detach().flatten() for tensor in tensors])
