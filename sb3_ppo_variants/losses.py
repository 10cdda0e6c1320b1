"""The value losses, and pure functions that the losses of all objectives share.

The objectives are in ``sb3_ppo_variants.objectives``. Equation numbers are those of Schulman et al. 2017, "Proximal
Policy Optimization Algorithms" (https://arxiv.org/abs/1707.06347). The paper maximises L; losses are -L, to be
minimised.

Every tensor has the shape ``(batch,)``. Losses and estimates are scalars, the means over the batch.

There is no factor 1/2 in the value losses: as in SB3, it is part of ``vf_coef``. SB3's default ``vf_coef=0.5``
therefore means 1/2 E[...] with a coefficient of 1, and OpenAI Baselines' 0.5 * (1/2 E[...]) means ``vf_coef=0.25``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch as th
from torch import nn
from torch.nn import functional as F

from sb3_ppo_variants.arguments import FLAG, NON_NEGATIVE, POSITIVE
from sb3_ppo_variants.errors import ArgumentError

# Keeps the division finite when all advantages are equal; SB3's value.
ADVANTAGE_EPSILON = 1e-8


def normalize_advantages(advantages: th.Tensor) -> th.Tensor:
    """Shift and scale advantages to mean 0 and standard deviation 1.

    A batch of one sample has no standard deviation and is returned unchanged (SB3 issue 325).

    :param advantages: advantage estimates, shape ``(batch,)``
    :return: normalised advantages, shape ``(batch,)``
    """
    if len(advantages) <= 1:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + ADVANTAGE_EPSILON)


def check_loss(loss: object, part: object, of: str, learns: bool = True) -> None:
    """Check what an objective or a value loss returned for a minibatch.

    :param part: the objective or the value loss
    :param of: what the loss must depend on, for the error message: ``"policy"`` or ``"values"``
    :param learns: whether that has a gradient, which a frozen network has not
    :raises ArgumentError: if the loss is not a scalar tensor, or does not depend on what it should improve
    """
    if not isinstance(loss, th.Tensor) or loss.shape != ():
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, th.Tensor) else repr(loss)
        raise ArgumentError(
            f"{type(part).__name__}.loss returned {found}; allowed: a scalar tensor, such as the mean over the samples"
        )
    if learns and not loss.requires_grad:
        raise ArgumentError(
            f"{type(part).__name__}.loss does not depend on the {of}, so training would not change it: compute the "
            "loss from what has a gradient, and do not detach it"
        )


def check_fixed(part: object) -> None:
    """Check that an objective or a value loss has nothing to be learned, because no optimizer would train it.

    :raises ArgumentError: if it has
    """
    for value in (part, *vars(part).values()):
        tensors = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(each, th.Tensor) and each.requires_grad for each in tensors):
            raise ArgumentError(
                f"{type(part).__name__} has a learnable tensor, which no optimizer would train: make it a number, "
                "which at() and after_update() of an objective may change, or call requires_grad_(False)"
            )


def entropy_loss(entropy: th.Tensor | None, log_prob: th.Tensor) -> th.Tensor:
    """Compute -E[S] of equation 9, the negative entropy bonus.

    :param entropy: the entropy in each state; ``None`` where it has no analytical form (gSDE with ``squash_output``)
    :param log_prob: log pi(a|s) of the actions taken, from which the entropy is then estimated
    """
    return th.mean(log_prob) if entropy is None else -th.mean(entropy)


def approximate_kl(log_ratio: th.Tensor) -> th.Tensor:
    """Compute the k3 estimate of KL(old || new) from the actions taken: E[(r - 1) - log r].

    This is SB3's ``train/approx_kl``; see http://joschu.net/blog/kl-approx.html.

    :param log_ratio: log r(theta)
    """
    return th.mean((th.exp(log_ratio) - 1) - log_ratio)


def ratio_deviation(log_ratio: th.Tensor) -> th.Tensor:
    """Compute E[``|r - 1|``], by which ESPO stops its updates (https://arxiv.org/abs/2202.00079).

    :param log_ratio: log r(theta)
    """
    return th.mean(th.abs(th.exp(log_ratio) - 1))


def clip_fraction(ratio: th.Tensor, clip_range: float) -> th.Tensor:
    """Compute the share of samples with ``|r - 1| > eps``, in [0, 1]."""
    return th.mean((th.abs(ratio - 1) > clip_range).float())


class ValueLoss(ABC):
    """A value loss. To write your own, derive from this class and pass an instance as ``value_loss``.

    Make the class a frozen dataclass. The instance is saved with the model, so its class must be importable where the
    model is loaded. The native library calls it once for each minibatch, and autograd differentiates it with
    respect to the values. A loss that depends on parameters in another way needs ``fast=False``.
    """

    @abstractmethod
    def loss(self, values: th.Tensor, old_values: th.Tensor, returns: th.Tensor) -> th.Tensor:
        """Compute the loss of a minibatch, a scalar.

        :param values: V, the current value estimates, shape ``(batch,)``
        :param old_values: V_old, the estimates made during the rollout, shape ``(batch,)``
        :param returns: R, the TD(lambda) targets, shape ``(batch,)``
        """

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients to log, as ``train/...``, under names of their own."""
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
