"""Rules that end an update early once the policy has moved too far.

Each is checked on a minibatch before its step. If several processes train together, its statistic is averaged.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from sb3_ppo_variants.arguments import NON_NEGATIVE, one_of
from sb3_ppo_variants.errors import ArgumentError

ENDS = one_of("update", "epoch")
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
