"""What a comparison says about its settings: aggregates, which of them differ, and curves, with their uncertainty.

The aggregate that decides is the mean over runs. It does not depend on the number of seeds what it estimates, every
environment counts in it, Table 1 of the paper reports it, and it has intervals that cover. Outliers cannot dominate it,
because no normalised score is far above 1. The interquartile mean is shown beside it, without an interval: with few
seeds, it trims whole environments.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import trim_mean

from sb3_ppo_variants.compare import intervals
from sb3_ppo_variants.compare.intervals import Band, Estimate
from sb3_ppo_variants.compare.permutation import ALPHA, holm, p_values, samples_for

# Matrices of normalised scores, shape (seeds, environments), by setting.
Scores = Mapping[str, np.ndarray]
# Settings are equivalent if their means differ by less than this share of the way from the random policy to the best.
MARGIN = 0.1
# With fewer environments, the middle half of the runs says little about some of them.
FEWEST_FOR_IQM = 3


@dataclass(frozen=True)
class Difference:
    """The mean of one setting minus that of another.

    :param estimate: the difference with its interval, which is not corrected for the number of comparisons
    :param p: corrected p value of the permutation test, NaN if a setting has a single seed
    """

    estimate: Estimate
    p: float

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the settings differ, with an error of at most ``ALPHA`` for all comparisons together."""
        return self.p <= ALPHA


# By the labels of both settings, in both orders.
Differences = Mapping[tuple[str, str], Difference]


def means(scores: Scores) -> dict[str, Estimate]:
    """Return the mean normalised score of each setting."""
    return {label: _estimate(own.mean(), intervals.of_mean(own)) for label, own in scores.items()}


def interquartile_means(scores: Scores) -> dict[str, float]:
    """Return the mean of the middle half of each setting's runs, rliable's IQM."""
    return {label: float(trim_mean(own, 0.25, axis=None)) for label, own in scores.items()}


def _estimate(value: float, ends: tuple[np.ndarray, np.ndarray]) -> Estimate:
    return Estimate(float(value), *map(float, ends))


def differences(scores: Scores) -> dict[tuple[str, str], Difference]:
    """Compare the means of each pair of settings, by permutation tests that are corrected for all of these pairs."""
    pairs = list(combinations(scores, 2))
    tested = [pair for pair in pairs if min(len(scores[label]) for label in pair) > 1]
    shared = _on_a_shared_scale(scores)
    found = holm(p_values([(shared[one], shared[other]) for one, other in tested], samples_for(len(tested))))
    p = dict(zip(tested, found.tolist(), strict=True))
    compared = {}
    for one, other in pairs:
        value = scores[one].mean() - scores[other].mean()
        low, high = intervals.of_difference(scores[one], scores[other])
        corrected = p.get((one, other), np.nan)
        compared[one, other] = Difference(_estimate(value, (low, high)), corrected)
        compared[other, one] = Difference(_estimate(-value, (-high, -low)), corrected)
    return compared


def _on_a_shared_scale(scores: Scores) -> dict[str, np.ndarray]:
    """Scale each environment by the best run of all settings.

    A permutation test needs a scale that stays when runs change their setting. Settings with a protocol of their own do
    not set the scale of the scores, but may be above it.
    """
    if not scores:
        return {}
    best = np.maximum(np.concatenate(list(scores.values())).max(axis=0), 1)
    return {label: own / best for label, own in scores.items()}


def probability_of_improvement(own: np.ndarray, other: np.ndarray) -> Estimate:
    """Return the share of pairs of runs in which the first is better, averaged over environments. Ties count half."""
    share = float((np.sign(own[:, None] - other[None]) + 1).mean() / 2)
    return Estimate(share, *intervals.of_probability(share, (len(own), len(other)), own.shape[1]))


def are_equivalent(own: np.ndarray, other: np.ndarray, margin: float = MARGIN) -> bool:
    """Return whether the data show that two means differ by less than a margin, at a level of 5%.

    These are two one-sided t tests: the 90% interval of the difference lies within the margin.
    """
    low, high = intervals.of_difference(own, other, level=0.9)
    return bool(-margin < low and high < margin)


def taus(scores: Scores) -> np.ndarray:
    """Return the thresholds of performance profiles: from the lowest score, but not below -1, to the highest."""
    found = np.concatenate([own.ravel() for own in scores.values()])
    return np.linspace(max(found.min(), -1.0), found.max(), 61)


def profiles(scores: Scores) -> dict[str, Band]:
    """Return the performance profile of each setting: the share of runs with a score above each of :func:`taus`."""
    thresholds = taus(scores)
    found = {}
    for label, own in scores.items():
        share = (own[..., None] > thresholds).mean(axis=(0, 1))
        found[label] = Band(share, *intervals.of_share(share, *own.shape), seeds=np.empty((0, len(thresholds))))
    return found


def band(curves: np.ndarray) -> Band:
    """Return the mean over seeds and environments of curves of shape ``(seeds, environments, points)``."""
    return Band(curves.mean(axis=(0, 1)), *intervals.of_mean(curves), seeds=curves.mean(axis=1))
