"""Objectives that clip with two bounds, twice, weights only or with a rollback; and one that stops instead."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch as th

from sb3_ppo_variants.arguments import ABOVE_ONE, NON_NEGATIVE, POSITIVE
from sb3_ppo_variants.limits import RatioDeviation
from sb3_ppo_variants.objectives.objective import Batch, NativeObjective, Rules
from sb3_ppo_variants.objectives.surrogates import Unclipped


@dataclass(frozen=True)
class ClipHigher(NativeObjective):
    """Equation 10 of https://arxiv.org/abs/2503.14476 (DAPO): E[min(r A, clip(r, 1 - eps_low, 1 + eps_high) A)].

    A higher upper bound leaves room for unlikely actions to become likely, which keeps the entropy up. The other parts
    of DAPO are about language models.

    :param clip_range: eps_low, >= 0; ``train/clip_fraction`` counts all \\|r - 1\\| > eps_low
    :param clip_range_high: eps_high, >= 0
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "CLIPPED"
    rules: ClassVar[Rules] = {"clip_range": NON_NEGATIVE, "clip_range_high": NON_NEGATIVE}
    clip_range: float = 0.2
    clip_range_high: float = 0.28

    @property
    def constants(self) -> Sequence[float]:
        """Both ends of the range, and no penalties."""
        return 1 - self.clip_range, 1 + self.clip_range_high, 0.0, 0.0

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[min(r A, clip(r, 1 - eps_low, 1 + eps_high) A)]."""
        clipped = th.clamp(batch.ratio, 1 - self.clip_range, 1 + self.clip_range_high)
        return -th.min(batch.advantages * batch.ratio, batch.advantages * clipped).mean()


@dataclass(frozen=True)
class DualClip(NativeObjective):
    """Equation 5 of https://arxiv.org/abs/1912.09729: E[max(min(r A, clip(r, 1 - eps, 1 + eps) A), c A)] where A < 0.

    Where A >= 0, it is PPO's clip, E[min(r A, clip(r, 1 - eps, 1 + eps) A)]. The second clip drops samples with A < 0
    and a large r, whose gradients PPO does not bound.

    :param clip_range: eps, >= 0
    :param c: the greatest r that counts where A < 0, > 1
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "DUAL_CLIPPED"
    rules: ClassVar[Rules] = {"clip_range": NON_NEGATIVE, "c": ABOVE_ONE}
    clip_range: float = 0.2
    c: float = 3.0

    @property
    def constants(self) -> Sequence[float]:
        """Both ends of the range, and c."""
        return 1 - self.clip_range, 1 + self.clip_range, self.c

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[max(min(r A, clip(r) A), c A) where A < 0, else min(r A, clip(r) A)]."""
        a = batch.advantages
        clipped = th.min(a * batch.ratio, a * th.clamp(batch.ratio, 1 - self.clip_range, 1 + self.clip_range))
        return -th.where(a < 0, th.max(clipped, self.c * a), clipped).mean()


@dataclass(frozen=True)
class CISPO(NativeObjective):
    """Equations 4 and 5 of https://arxiv.org/abs/2506.13585: E[sg(clip(r, 1 - eps_low, 1 + eps_high)) A log pi].

    The weight of a sample is clipped, and not its gradient, so every sample counts. sg is a constant in the gradient.
    The loss contains log r in place of log pi: they differ by log pi_old, which has no gradient. There is no trust
    region, so limit the number of epochs, or end updates early with ``target_kl``.

    :param clip_range_high: eps_high, >= 0. The paper does not give a value; the default is that of :class:`ClipHigher`,
        as in other implementations
    :param clip_range_low: eps_low, >= 0; with 1, as in the paper, there is no lower bound
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "WEIGHTED"
    rules: ClassVar[Rules] = {"clip_range_high": NON_NEGATIVE, "clip_range_low": NON_NEGATIVE}
    clip_range_high: float = 0.28
    clip_range_low: float = 1.0

    @property
    def constants(self) -> Sequence[float]:
        """Both ends of the range."""
        return 1 - self.clip_range_low, 1 + self.clip_range_high

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[sg(clip(r)) A log r]."""
        weights = th.clamp(batch.ratio.detach(), 1 - self.clip_range_low, 1 + self.clip_range_high)
        return -(weights * batch.advantages * batch.log_ratio).mean()


@dataclass(frozen=True)
class Rollback(NativeObjective):
    """PPO-RB, equations 10 and 11 of https://arxiv.org/abs/1903.07940 (UAI 2019): E[min(r A, F(r) A)].

    F(r) = r within the range, and -alpha r + (1 + alpha)(1 +- eps) beyond its upper or lower end. Where PPO's clip has
    no slope, the rollback pulls r back.

    :param clip_range: eps, >= 0
    :param alpha: the slope beyond the range, > 0
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "ROLLED_BACK"
    rules: ClassVar[Rules] = {"clip_range": NON_NEGATIVE, "alpha": POSITIVE}
    clip_range: float = 0.2
    alpha: float = 0.3

    @property
    def constants(self) -> Sequence[float]:
        """Both ends of the range, and alpha."""
        return 1 - self.clip_range, 1 + self.clip_range, self.alpha

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[min(r A, F(r) A)], where F(r) = (1 + alpha) clip(r) - alpha r."""
        clipped = th.clamp(batch.ratio, 1 - self.clip_range, 1 + self.clip_range)
        rolled_back = (1 + self.alpha) * clipped - self.alpha * batch.ratio
        return -th.min(batch.advantages * batch.ratio, batch.advantages * rolled_back).mean()


@dataclass(frozen=True)
class TrulyPPO(NativeObjective):
    """Truly PPO, https://arxiv.org/abs/1903.07940 (later version): E[r A - alpha KL] where KL >= delta and r A > A.

    Elsewhere, it is E[r A]. The KL of a state decides when its distribution is rolled back, and pulls it back. The
    paper subtracts the constant alpha delta elsewhere, which has no gradient. As in the authors' code, it is left out,
    and a sample at r = 1 is not rolled back.

    :param delta: the bound of the KL in a state, in nats, >= 0
    :param alpha: the weight of the KL beyond it, > 0
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "ROLLED_BACK_BY_KL"
    needs_kl: ClassVar[bool] = True
    rules: ClassVar[Rules] = {"delta": NON_NEGATIVE, "alpha": POSITIVE}
    delta: float = 0.03
    alpha: float = 5.0

    @property
    def constants(self) -> Sequence[float]:
        """Delta and alpha."""
        return self.delta, self.alpha

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[r A - alpha KL where KL >= delta and r A > A, else r A]."""
        surrogate = batch.advantages * batch.ratio
        beyond = (batch.kl >= self.delta) & (surrogate > batch.advantages)
        return -th.where(beyond, surrogate - self.alpha * batch.kl, surrogate).mean()


@dataclass(frozen=True)
class ESPO(Unclipped):
    """Early Stopping Policy Optimization, https://arxiv.org/abs/2202.00079: E[r A], until E|r - 1| exceeds delta.

    The mean deviation of the ratio bounds the total variation between the two policies. No ratio is clipped; the update
    ends once a minibatch exceeds the bound. A ``stop`` or ``target_kl`` of the model takes the place of this one.

    :param delta: the bound, >= 0; the default is that of RL-X, because the authors' code is not public
    :raises ArgumentError: (a ``ValueError``) if it has a value that is not allowed
    """

    rules: ClassVar[Rules] = {"delta": NON_NEGATIVE}
    delta: float = 0.25

    @property
    def stop(self) -> RatioDeviation:  # type: ignore[override]
        """The rule that ends an update."""
        return RatioDeviation(self.delta)
