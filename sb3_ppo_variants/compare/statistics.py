"""What a comparison says about its settings: means, which of them differ, and curves, with their uncertainty.

Scores have the shape ``(seeds, environments, ...)``. Seeds are the sample; the environments are fixed, as if chosen by
the user. ``python -m benchmarks verdicts`` measures how often the tests err and the intervals cover.

The mean over runs decides: every environment counts in it, Table 1 of the paper reports it, it has intervals that
cover, and no normalised score is far above 1. Scores may be far below 0 where hardly anything learns. The interquartile
mean has no interval: with few seeds, it trims whole environments.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import combinations, count
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit
from scipy.stats import norm, trim_mean

# A float, or an array for a curve.
Number = Any
# Matrices of normalised scores, shape (seeds, environments), by setting.
Scores = Mapping[str, np.ndarray]
# The level of Student's t distribution from which 95% intervals are computed. They contain the mean of scores that are
# as skewed as an exponential distribution in at least 90% of the cases. At a level of 0.95, it would be 86%; with three
# seeds, bootstrap intervals do in 71%.
LEVEL = 0.97
# The sum over environments of the seeds without the first, from which on there are intervals. With fewer, an interval
# that covers is several times as wide as the scores are apart.
FEWEST_FOR_INTERVALS = 3
# With fewer environments, the middle half of the runs says little about some of them.
FEWEST_FOR_IQM = 3
# Settings are equivalent if their means differ by less than this share of the way from the random policy to the best.
MARGIN = 0.1
# How often at least one of the settings that are the same may be called different.
ALPHA = 0.05
# Where the divisions of the runs between two settings cannot all be tried, at least so many random ones are.
RANDOM_DIVISIONS = 9_999
# The number of random divisions on which a p value rests that is just small enough for the first of all comparisons.
HITS = 100
# The most ways of dividing the runs of half of the environments that are tried one by one.
MOST_WAYS = 10**6
# Random divisions are tried in parts of this size, which fit into memory.
PART = 10_000


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% confidence interval, whose ends are NaN if there is none, or arrays of them for a curve."""

    value: Number
    low: Number
    high: Number

    @property
    def is_certain(self) -> bool:
        """Whether there is an interval, at any point of a curve."""
        return not np.isnan(self.low).all()

    def __str__(self) -> str:
        return f"{self.value:.2f}" + (f" ({self.low:.2f} to {self.high:.2f})" if self.is_certain else "")


@dataclass(frozen=True)
class Difference:
    """The mean of one setting minus that of another."""

    # The interval is not corrected for the number of comparisons.
    estimate: Estimate
    # The corrected p value of the permutation test, NaN if a setting has a single seed or is not tested.
    p: float

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the settings differ, with an error of at most ``ALPHA`` for all comparisons together."""
        return self.p <= ALPHA


# By the labels of both settings, in both orders.
Differences = Mapping[tuple[str, str], Difference]


class Ranked(NamedTuple):
    """A setting, those that it is better and worse than beyond noise, and its ranks, from the best possible one."""

    label: str
    value: Estimate
    seeds: int
    better: list[str]
    worse: list[str]
    ranks: str


def are_enough(seeds: int, envs: int) -> bool:
    """Whether so many seeds in so many environments give an interval."""
    return (seeds - 1) * envs >= FEWEST_FOR_INTERVALS


def interval(own: np.ndarray, other: np.ndarray | None = None, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Compute the ends of the interval of a setting's mean, or of its difference from the mean of another setting."""
    samples = [own] if other is None else [own, other]
    value = own.mean(axis=(0, 1)) - (0 if other is None else other.mean(axis=(0, 1)))
    enough = all(are_enough(*sample.shape[:2]) for sample in samples)
    half = half_width(samples, level) if enough else np.full_like(value, np.nan)
    return value - half, value + half


def half_width(samples: Sequence[np.ndarray], level: float) -> np.ndarray:
    """Compute half the width of Student's t interval of the mean of a sample, or of the difference of two means.

    Its degrees of freedom are Welch's and Satterthwaite's, because scores vary differently in the environments.
    """
    # Variances of the means in the environments, each divided by the squared number of environments.
    parts = [sample.var(axis=0, ddof=1) / len(sample) / sample.shape[1] ** 2 for sample in samples]
    variance = sum(part.sum(axis=0) for part in parts)
    squares = sum((part**2).sum(axis=0) / (len(own) - 1) for part, own in zip(parts, samples, strict=True))
    # Equal scores say nothing about how much others would differ: 0 / 0 is NaN, which is no interval.
    with np.errstate(invalid="ignore", divide="ignore"):
        half: np.ndarray = stdtrit(variance**2 / squares, 0.5 + level / 2) * np.sqrt(variance)
    return half


def estimate(own: np.ndarray) -> Estimate:
    """Compute the mean over seeds and environments of scores, or of each point of curves."""
    return Estimate(own.mean(axis=(0, 1)), *interval(own))


def interquartile_means(scores: Scores) -> dict[str, float]:
    """Compute the mean of the middle half of each setting's runs, rliable's IQM."""
    return {label: float(trim_mean(own, 0.25, axis=None)) for label, own in scores.items()}


def differences(scores: Scores, untested: Container[str] = ()) -> dict[tuple[str, str], Difference]:
    """Compare the means of each pair of settings, by permutation tests that are corrected for the pairs with a test."""
    pairs = list(combinations(scores, 2))
    tested = [pair for pair in pairs if all(len(scores[label]) > 1 and label not in untested for label in pair)]
    # A permutation test needs a scale that stays when runs change their setting. Settings with a protocol of their own
    # do not set the scale of the scores, but may be above it.
    shared = {label: own for label, own in scores.items() if label not in untested}
    best = np.maximum(np.concatenate([*shared.values()]).max(axis=0), 1) if shared else 1
    shared = {label: own / best for label, own in shared.items()}
    # So many random divisions that chance hardly decides which tests are significant.
    samples = max(RANDOM_DIVISIONS, math.ceil(HITS * len(tested) / ALPHA))
    found = holm(p_values([(shared[one], shared[other]) for one, other in tested], samples))
    p = dict(zip(tested, found.tolist(), strict=True))
    compared = {}
    for one, other in pairs:
        value = scores[one].mean() - scores[other].mean()
        low, high = interval(scores[one], scores[other])
        corrected = p.get((one, other), np.nan)
        # Where a score is above 1, the test has another scale. If the other setting leads there, nothing was shown.
        if (one, other) in p and value * (shared[one].mean() - shared[other].mean()) < 0:
            corrected = 1.0
        compared[one, other] = Difference(Estimate(value, low, high), corrected)
        compared[other, one] = Difference(Estimate(-value, -high, -low), corrected)
    return compared


def rank(scores: Scores, compared: Differences) -> list[Ranked]:
    """Rank the settings in order of their means, the highest first."""
    ranked = []
    ours = {label: estimate(own) for label, own in sorted(scores.items(), key=lambda item: -item[1].mean())}
    for label, value in ours.items():
        pairs = {other: compared[label, other] for other in ours if other != label}
        apart = {other: found.estimate.value for other, found in pairs.items() if found.is_beyond_noise}
        better, worse = [n for n, by in apart.items() if by > 0], [n for n, by in apart.items() if by < 0]
        first, last = 1 + len(worse), len(ours) - len(better)
        ranks = str(first) if first == last else f"{first} to {last}"
        ranked.append(Ranked(label, value, len(scores[label]), better, worse, ranks))
    return ranked


def probability_of_improvement(own: np.ndarray, other: np.ndarray) -> Estimate:
    """Compute the share of pairs of runs in which the first is better, averaged over environments. Ties count half.

    The interval is Newcombe's fifth (Statistics in Medicine 25, 2006, page 559), which has a width even at 0 and 1. The
    mean over environments has at most the variance that equal probabilities would have.
    """
    share = float((np.sign(own[:, None] - other[None]) + 1).mean() / 2)
    (first, envs), second = own.shape, len(other)
    if not (are_enough(first, envs) and are_enough(second, envs)):
        return Estimate(share, math.nan, math.nan)
    p = np.linspace(0, 1, 2001)
    between = (first + second) / 2 - 1
    variance = p * (1 - p) * (1 + between * ((1 - p) / (2 - p) + p / (1 + p))) / (first * second * envs)
    possible = p[np.abs(share - p) <= norm.ppf(0.975) * np.sqrt(variance) + 1e-9]
    return Estimate(share, float(possible[0]), float(possible[-1]))


def interval_of_equivalence(own: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Compute the ends of the 90% interval of the difference of two means."""
    low, high = interval(own, other, level=0.9)
    return float(low), float(high)


def are_equivalent(own: np.ndarray, other: np.ndarray, margin: float = MARGIN) -> bool:
    """Whether two one-sided t tests at 5% show that two means differ by less than a margin."""
    low, high = interval_of_equivalence(own, other)
    return -margin < low and high < margin


def p_values(pairs: Sequence[tuple[np.ndarray, np.ndarray]], samples: int = RANDOM_DIVISIONS) -> np.ndarray:
    """Compute the two-sided p value of the difference of the means of each pair of settings, by permutation.

    The test divides the runs of each environment between the two settings in all ways, or in many random ones if there
    are too many. Its p value is the share of these divisions in which the means differ at least as much as they do. It
    is exact if the scale of each environment does not depend on which of the two settings a run is of.

    If the settings have different numbers of seeds, differences are measured in standard errors, as in Welch's t test
    (Janssen, Statistics & Probability Letters 36, 1997). Otherwise, settings with the same mean would often differ if
    the one with fewer seeds varied more.
    """
    found = np.empty(len(pairs))
    shapes = [(len(one), len(other), one.shape[1]) for one, other in pairs]
    for shape in set(shapes):
        same = [number for number, of_pair in enumerate(shapes) if of_pair == shape]
        first, second, envs = shape
        if first == second and math.comb(2 * first, first) ** math.ceil(envs / 2) <= MOST_WAYS:
            found[same] = [_p_value_of_sums(*pairs[number]) for number in same]
            continue
        divisions, complete = _divisions(*shape, samples)
        pooled = np.stack([np.concatenate(pairs[number]).T for number in same], axis=-1)
        as_found = np.broadcast_to(np.arange(pooled.shape[1]) < first, (1, *pooled.shape[:2]))
        # Sums in another order differ in their last digits.
        least = _distances(as_found, pooled) * (1 - 1e-9) - 1e-9 * np.ptp(pooled, axis=(0, 1))
        parts = (divisions[start : start + PART] for start in range(0, len(divisions), PART))
        reached = sum((_distances(part, pooled) >= least).sum(axis=0) for part in parts)
        # The division that was found is one of the random ones.
        found[same] = reached / len(divisions) if complete else (reached + 1) / (len(divisions) + 1)
    return found


def _p_value_of_sums(one: np.ndarray, other: np.ndarray) -> float:
    """Compute the p value of all divisions between two settings with as many runs each.

    With as many runs, the means differ by a multiple of the sum of one setting's centred scores. Each such sum is one
    over half of the environments plus one over the others, so all divisions are counted from the sums over both halves.
    """
    seeds, envs = one.shape
    pooled = np.concatenate([one, other])
    centred = pooled - pooled.mean(axis=0)
    sums = (_ways(2 * seeds, seeds) @ centred).T
    fewer, more = (np.sort(reduce(np.add.outer, half, np.zeros(1)), axis=None) for half in np.split(sums, [envs // 2]))
    # Sums in another order differ in their last digits.
    least = abs(centred[:seeds].sum()) * (1 - 1e-9) - 1e-9 * np.ptp(pooled)
    reached = int((len(more) - np.searchsorted(more, least - fewer)).sum())
    # Exchanging the settings changes the sign of a sum.
    return min(2 * reached / (len(fewer) * len(more)), 1.0)


def _distances(divisions: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Compute how far apart the two parts of each division are, in standard errors if they are of different size.

    ``divisions`` says which runs are of the first part, shape ``(divisions, environments, runs)``. ``pooled`` has the
    scores, shape ``(environments, runs, pairs)``. The result has the shape ``(divisions, pairs)``.
    """
    envs, runs, _ = pooled.shape
    first = int(divisions[0, 0].sum())
    centred = pooled - pooled.mean(axis=1, keepdims=True)
    parts = ((divisions.astype(float), first), ((~divisions).astype(float), runs - first))
    one, other = (part.transpose(1, 0, 2) @ centred / number for part, number in parts)
    distances: np.ndarray = np.abs((one - other).mean(axis=0))
    if first in (1, runs - first, runs - 1):  # A single run has no standard error.
        return distances
    variance = np.zeros_like(distances)
    for (part, number), mean in zip(parts, (one, other), strict=True):
        for env, scores in enumerate(centred):
            # The mean of squares minus the squared mean would lose all digits where the scores of a part hardly vary.
            squares = (part[:, env, :, None] * (scores - mean[env][:, None]) ** 2).sum(axis=1)
            variance += squares / number / (number - 1) / envs**2
    # Equal scores have none either, up to rounding.
    error = np.sqrt(np.maximum(variance, (1e-9 * np.ptp(pooled, axis=(0, 1))) ** 2))
    np.divide(distances, error, out=distances, where=error > 0)
    return distances


@lru_cache(maxsize=8)
def _ways(runs: int, first: int) -> np.ndarray:
    """Return which runs are of the first setting in each way of dividing them, shape ``(ways, runs)``."""
    chosen = np.array([*combinations(range(runs), first)])
    ways = np.zeros((len(chosen), runs), dtype=bool)
    np.put_along_axis(ways, chosen, True, axis=1)
    return ways


@lru_cache(maxsize=2)
def _divisions(first: int, second: int, envs: int, samples: int) -> tuple[np.ndarray, bool]:
    """Return which runs are of the first setting in each division, and whether all divisions are there."""
    runs = first + second
    ways = math.comb(runs, first)
    complete = ways**envs <= samples
    if complete:
        return _ways(runs, first)[np.indices((ways,) * envs).reshape(envs, -1).T], complete
    generator, sizes = np.random.default_rng(0), [PART] * (samples // PART) + [samples % PART]
    drawn = [generator.random((size, envs, runs)).argsort(axis=2) < first for size in sizes]
    return np.concatenate(drawn), complete


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p values for their number by Holm's method, which holds however the tests depend on each other."""
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return corrected


def smallest_p(first: int, second: int, envs: int) -> float:
    """Compute the smallest p value that all divisions of so many seeds of two settings can give."""
    # With equal numbers of seeds, exchanging the two settings gives the same difference.
    divisions: int = math.comb(first + second, first) ** envs
    return (1 + (first == second)) / divisions


def seeds_needed(tests: int, envs: int) -> int:
    """Compute the number of seeds of each setting with which a difference can be significant among so many tests."""
    return next(seeds for seeds in count(2) if smallest_p(seeds, seeds, envs) <= ALPHA / tests)
