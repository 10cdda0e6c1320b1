"""The value losses, L^VF of equation 9 of https://arxiv.org/abs/1707.06347.

There is no factor 1/2 in them: as in SB3, it is part of ``vf_coef``. SB3's default ``vf_coef=0.5`` therefore means
1/2 E[...] with a coefficient of 1, and OpenAI Baselines' 0.5 * (1/2 E[...]) means ``vf_coef=0.25``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch as th
from torch.nn import functional as F

from sb3_ppo_variants.arguments.rules import FLAG, NON_NEGATIVE, POSITIVE


class ValueLoss(ABC):
    """A value loss. To write your own, derive from this class and pass an instance as ``value_loss``.

    Make the class a frozen dataclass. The instance is saved with the model, so its class must be importable where the
    model is loaded. The native library calls it once for each minibatch, and autograd differentiates it.
    """

    @abstractmethod
    def loss(self, values: th.Tensor, old_values: th.Tensor, returns: th.Tensor) -> th.Tensor:
        """Compute the loss of a minibatch, a scalar.

        :param values: V, the current value estimates, shape ``(batch,)``
        :param old_values: V_old, the estimates made during the rollout, shape ``(batch,)``
        :param returns: R, the TD(lambda) targets, shape ``(batch,)``
        """

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients to log, as ``train/...``."""
        return {}


@dataclass(frozen=True)
class SquaredError(ValueLoss):
    """L^VF of equation 9: E[(V - R)^2]."""

    def loss(self, values: th.Tensor, old_values: th.Tensor, returns: th.Tensor) -> th.Tensor:
        """E[(V - R)^2]."""
        return F.mse_loss(returns, values)


@dataclass(frozen=True)
class ClippedError(ValueLoss):
    """The squared error of values that are clipped around the old ones, which is not in the paper.

    The maximum makes it pessimistic: clipping only removes the gradient where moving further would lower the error,
    never where the value has moved the wrong way.

    :param clip_range: how far a value may move before it is clipped, in units of the return, >= 0
    :param pessimistic: True takes the maximum with the unclipped error, as OpenAI Baselines' ppo2 does, which
        ``clip_range_vf`` means too; False takes the clipped error alone, as SB3 does
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    clip_range: float
    pessimistic: bool = True

    def __post_init__(self) -> None:
        NON_NEGATIVE.check("clip_range", self.clip_range)
        FLAG.check("pessimistic", self.pessimistic)

    def loss(self, values: th.Tensor, old_values: th.Tensor, returns: th.Tensor) -> th.Tensor:
        """E[max((V - R)^2, (V_old + clip(V - V_old, -eps_v, eps_v) - R)^2)], or without the maximum."""
        clipped_values = old_values + th.clamp(values - old_values, -self.clip_range, self.clip_range)
        if not self.pessimistic:
            return F.mse_loss(returns, clipped_values)
        return th.max((values - returns) ** 2, (clipped_values - returns) ** 2).mean()

    def coefficients(self) -> dict[str, float]:
        """Return the range, under SB3's name."""
        return {"clip_range_vf": self.clip_range}


@dataclass(frozen=True)
class Huber(ValueLoss):
    """Huber's loss: the squared error near the return, and linear in the error beyond ``delta``.

    Andrychowicz et al. 2021 (https://arxiv.org/abs/2006.05990) compare it with the squared error. This is twice the
    usual form, so that it equals the squared error for small errors, and ``vf_coef`` has the same meaning.

    :param delta: the error from which on the loss is linear, in units of the return, > 0
    :raises ArgumentError: (a ``ValueError``) if it has a value that is not allowed
    """

    delta: float

    def __post_init__(self) -> None:
        POSITIVE.check("delta", self.delta)

    def loss(self, values: th.Tensor, old_values: th.Tensor, returns: th.Tensor) -> th.Tensor:
        """E[h(V - R)] with h(x) = x^2 where ``|x|`` <= delta, and 2 delta ``|x|`` - delta^2 elsewhere."""
        return 2 * F.huber_loss(values, returns, delta=self.delta)
