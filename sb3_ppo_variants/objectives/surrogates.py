"""The objectives of the PPO paper: clipped, unclipped, and with a KL penalty that is fixed or adaptive."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import torch as th

from sb3_ppo_variants.arguments import NON_NEGATIVE, POSITIVE, number
from sb3_ppo_variants.objectives.objective import Batch, NativeObjective, Rules


@dataclass(frozen=True)
class Clipped(NativeObjective):
    """Equation 7 of https://arxiv.org/abs/1707.06347: L^CLIP = E[min(r A, clip(r, 1 - eps, 1 + eps) A)].

    :param clip_range: eps, >= 0
    :raises ArgumentError: (a ``ValueError``) if it has a value that is not allowed
    """

    term: ClassVar[str] = "CLIPPED"
    rules: ClassVar[Rules] = {"clip_range": NON_NEGATIVE}
    clip_range: float = 0.2

    @property
    def constants(self) -> Sequence[float]:
        """Both ends of the range, and no penalties."""
        return 1 - self.clip_range, 1 + self.clip_range, 0.0, 0.0

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[min(r A, clip(r, 1 - eps, 1 + eps) A)]."""
        unclipped = batch.advantages * batch.ratio
        clipped = batch.advantages * th.clamp(batch.ratio, 1 - self.clip_range, 1 + self.clip_range)
        return -th.min(unclipped, clipped).mean()


@dataclass(frozen=True)
class Unclipped(NativeObjective):
    """Equation 6 of https://arxiv.org/abs/1707.06347, "no clipping or penalty": L^CPI = E[r A]."""

    term: ClassVar[str] = "CLIPPED"

    @property
    def constants(self) -> Sequence[float]:
        """An infinite range, and no penalties."""
        return -inf, inf, 0.0, 0.0

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[r A]."""
        return -(batch.advantages * batch.ratio).mean()


# The constants of the rule in section 4 of the paper.
TOLERANCE = 1.5
FACTOR = 2.0
# Bounds of beta. They keep it finite, and let it recover after the KL has been on one side of its target for long.
MIN_KL_COEF = 1e-6
MAX_KL_COEF = 1e6
KL_COEF = number(f"a number in [{MIN_KL_COEF:g}, {MAX_KL_COEF:g}]", at_least=MIN_KL_COEF, at_most=MAX_KL_COEF)


@dataclass(frozen=True)
class KLPenalized(NativeObjective):
    """Equation 8 of https://arxiv.org/abs/1707.06347: L^KLPEN = E[r A - beta KL(old || new)].

    :param kl_coef: beta, >= 0
    :param clip_range: eps, >= 0; if given, r A is clipped as in equation 7, "in addition to" the penalty (section 4)
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    needs_kl: ClassVar[bool] = True
    term: ClassVar[str] = "CLIPPED"
    rules: ClassVar[Rules] = {"kl_coef": NON_NEGATIVE, "clip_range": NON_NEGATIVE.or_none()}
    kl_coef: float = 1.0
    clip_range: float | None = None

    @property
    def constants(self) -> Sequence[float]:
        """Both ends of the range, beta, and no penalty on the reverse KL."""
        low, high, *_ = self._surrogate.constants
        return low, high, self.kl_coef, 0.0

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[r A - beta KL]."""
        return self._surrogate.loss(batch) + self.kl_coef * batch.kl.mean()

    @property
    def _surrogate(self) -> NativeObjective:
        return Unclipped() if self.clip_range is None else Clipped(self.clip_range)

    def coefficients(self) -> dict[str, float]:
        """Return beta and, if the objective also clips, eps."""
        clipped = {} if self.clip_range is None else {"clip_range": float(self.clip_range)}
        return {"kl_coef": self.kl_coef, **clipped}


@dataclass(frozen=True)
class AdaptiveKL(KLPenalized):
    """Equation 8 with the adaptive beta of section 4.

    :param desired_kl: d_targ, in nats per state, > 0
    :param kl_coef: beta, between ``MIN_KL_COEF`` and ``MAX_KL_COEF``
    """

    rules: ClassVar[Rules] = {**KLPenalized.rules, "kl_coef": KL_COEF, "desired_kl": POSITIVE}
    desired_kl: float = 0.01

    def after_update(self, kl: float | None) -> "AdaptiveKL":
        """Return the same objective with the beta of the next update."""
        assert kl is not None, "an update with a penalty measures the KL"
        return replace(self, kl_coef=adapt_kl_coef(self.kl_coef, kl, self.desired_kl))


def adapt_kl_coef(kl_coef: float, kl: float, desired_kl: float) -> float:
    """Compute the coefficient of the next update, section 4 of https://arxiv.org/abs/1707.06347.

    If d < d_targ / 1.5, beta is halved; if d > 1.5 d_targ, it is doubled.

    :param kl_coef: beta
    :param kl: d, the mean of KL(old || new) after the update
    :param desired_kl: d_targ
    :return: the next beta, between ``MIN_KL_COEF`` and ``MAX_KL_COEF``
    """
    if kl < desired_kl / TOLERANCE:
        kl_coef /= FACTOR
    elif kl > desired_kl * TOLERANCE:
        kl_coef *= FACTOR
    return min(max(kl_coef, MIN_KL_COEF), MAX_KL_COEF)
