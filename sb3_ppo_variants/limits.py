"""Limits to how far an update moves the policy: rules that end it early, and a step size that follows the KL.

Rules that end an update are checked on a minibatch before its step. If several processes train together, its statistic
is averaged.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from sb3_ppo_variants.arguments import ABOVE_ONE, NON_NEGATIVE, POSITIVE, one_of
from sb3_ppo_variants.errors import ArgumentError, refuse

ENDS = one_of("update", "epoch")
EVERY = one_of("update", "minibatch")
# As in SB3, an update ends early once the approximate KL exceeds ``target_kl`` by this factor.
TOLERATED = 1.5
LIMITED_STATISTICS = ("approx_kl", "kl", "ratio_deviation")


@dataclass(frozen=True)
class EarlyStop:
    """Ends an update, or only the epoch, once a statistic of a minibatch exceeds a limit. The subclasses say which.

    :param limit: the largest value for which the step is taken, >= 0
    :param ends: ``"update"``, or ``"epoch"`` to go on with the next epoch
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    limit: float
    ends: Literal["update", "epoch"] = "update"

    statistic: ClassVar[str]
    """The name of the statistic, which engines measure on each minibatch."""
    needs_kl: ClassVar[bool] = False
    """Whether the policy's distribution needs a known KL."""
    reached: ClassVar[str]
    """What messages call the limit."""

    def __post_init__(self) -> None:
        if getattr(self, "statistic", None) not in LIMITED_STATISTICS:
            raise ArgumentError(
                f"{type(self).__name__} has no statistic that updates measure: use ApproximateKL, ExactKL or "
                "RatioDeviation, or a class derived from one of them"
            )
        NON_NEGATIVE.check("limit", self.limit)
        ENDS.check("ends", self.ends)


@dataclass(frozen=True)
class ApproximateKL(EarlyStop):
    """Stops by SB3's estimate of KL(old || new) from the actions taken: the mean of (r - 1) - log r.

    SB3's ``target_kl=x`` is ``ApproximateKL(1.5 * x)``.

    :param limit: in nats per state, >= 0
    :param ends: ``"update"``, or ``"epoch"`` to go on with the next epoch
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    statistic: ClassVar[str] = "approx_kl"
    reached: ClassVar[str] = "max kl"


@dataclass(frozen=True)
class ExactKL(EarlyStop):
    """Stops by the mean of the exact KL(old || new) over the states of a minibatch.

    :param limit: in nats per state, >= 0
    :param ends: ``"update"``, or ``"epoch"`` to go on with the next epoch
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    statistic: ClassVar[str] = "kl"
    needs_kl: ClassVar[bool] = True
    reached: ClassVar[str] = "max exact kl"


@dataclass(frozen=True)
class RatioDeviation(EarlyStop):
    """Stops by the mean of ``|r - 1|``, as in ESPO (Sun et al. 2022, https://arxiv.org/abs/2202.00079).

    ESPO has no clipping: it is this with :class:`~sb3_ppo_variants.PPOUnclipped`.

    :param limit: the largest mean deviation, >= 0
    :param ends: ``"update"``, or ``"epoch"`` to go on with the next epoch
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    statistic: ClassVar[str] = "ratio_deviation"
    reached: ClassVar[str] = "max ratio deviation"


@dataclass(frozen=True, kw_only=True)
class KLAdaptive:
    """An Adam step size that keeps the KL of an update near a target; pass it as ``learning_rate``.

    If the exact mean of KL(old || new) is above ``tolerance * desired_kl``, the step size is divided by ``factor``; if
    it is below ``desired_kl / tolerance``, it is multiplied by ``factor``.

    The PPO paper (https://arxiv.org/abs/1707.06347, table 4) adjusts Adam's step size by a target value of the KL on
    Roboschool, but does not give its rule. The rule and its constants are those of OpenAI Baselines' ACKTR, which
    applies it after each update, and of rsl_rl's PPO, which applies it before each step.

    :param desired_kl: the target, in nats per state, > 0
    :param learning_rate: the step size to begin with, between the bounds. The model's attribute ``learning_rate`` is
        replaced by an object with the adapted step size after each update
    :param every: ``"update"`` adapts the step size after each update, by the KL over the rollout; ``"minibatch"``
        adapts it before each step, by the KL over the minibatch, except before the first step of an update, where the
        policy has not moved yet
    :param factor: > 1
    :param tolerance: > 1
    :param min_learning_rate: the lower bound, > 0
    :param max_learning_rate: the upper bound
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    desired_kl: float = 0.01
    learning_rate: float = 3e-4
    every: Literal["update", "minibatch"] = "update"
    factor: float = 1.5
    tolerance: float = 2.0
    min_learning_rate: float = 1e-5
    max_learning_rate: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("desired_kl", "learning_rate", "min_learning_rate", "max_learning_rate"):
            POSITIVE.check(name, getattr(self, name))
        for name in ("factor", "tolerance"):
            ABOVE_ONE.check(name, getattr(self, name))
        EVERY.check("every", self.every)
        low, high = self.min_learning_rate, self.max_learning_rate
        if not low <= self.learning_rate <= high:
            refuse("learning_rate", self.learning_rate, f"a number in [{low:g}, {high:g}], the bounds of KLAdaptive")

    @property
    def in_minibatches(self) -> bool:
        """Whether the step size is adapted before each step."""
        return self.every == "minibatch"

    def adapted(self, learning_rate: float, kl: float) -> float:
        """Compute the next step size.

        :param learning_rate: the last step size
        :param kl: the mean of KL(old || new). A KL of 0 changes nothing, since the policy has not moved
        """
        if kl > self.tolerance * self.desired_kl:
            return max(learning_rate / self.factor, self.min_learning_rate)
        if 0 < kl < self.desired_kl / self.tolerance:
            return min(learning_rate * self.factor, self.max_learning_rate)
        return learning_rate

    def after_update(self, learning_rate: float, kl: float | None) -> "KLAdaptive":
        """Return the same rule with the step size of the next update.

        :param learning_rate: the last step size of the update
        :param kl: the mean of KL(old || new) over the rollout
        """
        if not self.in_minibatches:
            assert kl is not None, "a model with this step size measures the KL"
            learning_rate = self.adapted(learning_rate, kl)
        return replace(self, learning_rate=learning_rate)
