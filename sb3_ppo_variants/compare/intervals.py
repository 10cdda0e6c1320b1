"""Confidence intervals that contain the true value with few seeds. ``verdicts`` measures how often they do.

Scores have the shape ``(seeds, environments, ...)``. Seeds are the sample; the environments are fixed, as if chosen by
the user. Bootstrap intervals are too narrow here: with three seeds, one of 95% contains the mean in 71% of the cases.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit
from scipy.stats import beta, norm

# The level of Student's t distribution from which 95% intervals are computed. They contain the mean of normally
# distributed scores in 97% of cases, and still in at least 90% if the scores are as skewed as an exponential
# distribution. At a level of 0.95, the latter is 88%.
LEVEL = 0.97
# The sum over environments of the seeds without the first, from which on there are intervals: four seeds in one
# environment, three in two, two in three. With fewer, an interval that covers is several times as wide as the scores
# are apart.
FEWEST = 3


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% confidence interval, whose ends are NaN if there is none."""

    value: float
    low: float
    high: float

    @property
    def is_certain(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)

    def __str__(self) -> str:
        if not self.is_certain:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Band:
    """A curve with its 95% confidence intervals, whose ends are NaN where there is none.

    :param mean: shape ``(points,)``
    :param low: shape ``(points,)``
    :param high: shape ``(points,)``
    :param seeds: the curve of each seed, shape ``(seeds, points)``; empty if the mean is not over seeds
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: np.ndarray

    @property
    def is_certain(self) -> bool:
        """Whether there is an interval at any point."""
        return not np.isnan(self.low).all()


def are_enough(seeds: int, envs: int) -> bool:
    """Return whether so many seeds in so many environments give an interval."""
    return (seeds - 1) * envs >= FEWEST


def of_mean(scores: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper ends of the interval of the mean over seeds and environments."""
    return _where_enough(scores.mean(axis=(0, 1)), [scores], level)


def of_difference(own: np.ndarray, other: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper ends of the interval of the difference of the means of two settings."""
    return _where_enough(own.mean(axis=(0, 1)) - other.mean(axis=(0, 1)), [own, other], level)


def _where_enough(value: np.ndarray, samples: list[np.ndarray], level: float) -> tuple[np.ndarray, np.ndarray]:
    if not all(are_enough(*sample.shape[:2]) for sample in samples):
        nothing = np.full_like(value, np.nan)
        return nothing, nothing
    half = half_width(samples, level)
    return value - half, value + half


def half_width(samples: list[np.ndarray], level: float) -> np.ndarray:
    """Return half the width of Student's t interval of the mean of a sample, or of the difference of two means.

    Its degrees of freedom are Welch's and Satterthwaite's, because scores vary differently in the environments.
    """
    # Variances of the means in the environments, each divided by the squared number of environments.
    parts = [sample.var(axis=0, ddof=1) / len(sample) / sample.shape[1] ** 2 for sample in samples]
    variance = np.sum([part.sum(axis=0) for part in parts], axis=0)
    squares = np.sum(
        [(part**2).sum(axis=0) / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True)], axis=0
    )
    # Equal scores say nothing about how much others would differ: 0 / 0 is NaN, which is no interval.
    with np.errstate(invalid="ignore", divide="ignore"):
        return stdtrit(variance**2 / squares, 0.5 + level / 2) * np.sqrt(variance)


def of_probability(value: float, seeds: tuple[int, int], envs: int) -> tuple[float, float]:
    """Return the ends of the 95% interval of the probability that a run of one setting is better than one of another.

    It is Newcombe's fifth method (Statistics in Medicine 25, 2006, page 559), whose interval has a width even if the
    probability is 0 or 1. The mean over environments has at most the variance that equal probabilities would have.
    """
    first, second = seeds
    if not (are_enough(first, envs) and are_enough(second, envs)):
        return math.nan, math.nan
    p = np.linspace(0, 1, 2001)
    between = (first + second) / 2 - 1
    variance = p * (1 - p) * (1 + between * ((1 - p) / (2 - p) + p / (1 + p))) / (first * second * envs)
    possible = p[np.abs(value - p) <= norm.ppf(0.975) * np.sqrt(variance) + 1e-9]
    return float(possible[0]), float(possible[-1])


def of_share(share: np.ndarray, seeds: int, envs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the 95% interval of a share of runs: Clopper's and Pearson's, which is never too narrow."""
    if not are_enough(seeds, envs):
        nothing = np.full_like(share, np.nan)
        return nothing, nothing
    runs = seeds * envs
    found = np.rint(share * runs)
    low, high = beta.ppf(0.025, found, runs - found + 1), beta.ppf(0.975, found + 1, runs - found)
    return np.where(found == 0, 0.0, low), np.where(found == runs, 1.0, high)
