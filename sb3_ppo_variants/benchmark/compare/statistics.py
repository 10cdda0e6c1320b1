"""The uncertainty of a comparison: rliable's aggregates with stratified bootstrap intervals.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations

import numpy as np
from rliable import library, metrics
from scipy.stats import trim_mean

from sb3_ppo_variants.benchmark.compare.paper import Estimate

# Matrices of normalised scores, shape (seeds, environments), by setting.
Scores = Mapping[str, np.ndarray]
# Points by setting, shape (points,), and the lower and upper ends of their intervals, shape (2, points).
Intervals = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
REPETITIONS = 2000
PROFILE_REPETITIONS = 500
AGGREGATES: Mapping[str, Callable[..., float]] = {
    "mean": metrics.aggregate_mean,
    "IQM": metrics.aggregate_iqm,
    "optimality gap": metrics.aggregate_optimality_gap,
    "median": metrics.aggregate_median,
}


@contextmanager
def _reproducible() -> Iterator[None]:
    # rliable draws from numpy's global generator.
    state = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(state)


def _estimates(
    scores: Mapping[str, list[np.ndarray]], functions: Mapping[str, Callable[..., float]]
) -> dict[str, dict[str, Estimate]]:
    """Return the value of each function for each setting, by setting and function.

    The scores of a setting are the matrices that the functions take. There is no interval with fewer than two seeds,
    because resampling a single seed would give an interval of zero width.
    """
    if not scores:
        return {}
    with _reproducible():
        points, intervals = library.get_interval_estimates(
            # rliable resamples the matrices of a list independently of each other.
            {label: of if len(of) > 1 else of[0] for label, of in scores.items()},
            lambda *matrices: np.array([function(*matrices) for function in functions.values()]),
            reps=REPETITIONS,
        )
    for label, matrices in scores.items():
        if min(map(len, matrices)) < 2:
            intervals[label][:] = np.nan
    return {
        label: {
            name: Estimate(*map(float, numbers))
            for name, *numbers in zip(functions, points[label], *intervals[label], strict=True)
        }
        for label in scores
    }


def aggregates(scores: Scores) -> dict[str, dict[str, Estimate]]:
    """Return the mean, interquartile mean, optimality gap and median of each setting."""
    return _estimates({label: [own] for label, own in scores.items()}, AGGREGATES)


def against(scores: Scores, baseline: str) -> dict[str, dict[str, Estimate]]:
    """Compare the other settings with the baseline: probability of improvement, and difference of the IQMs."""
    if baseline not in scores:
        return {}
    pairs = {label: [own, scores[baseline]] for label, own in scores.items() if label != baseline}
    functions = {
        "P(better)": probability_of_improvement,
        "IQM difference": lambda own, other: metrics.aggregate_iqm(own) - metrics.aggregate_iqm(other),
    }
    return _estimates(pairs, functions)


def probability_of_improvement(own: np.ndarray, other: np.ndarray) -> float:
    """Return the share of pairs of runs in which the first is better, averaged over environments. Ties count half.

    rliable's function of the same name returns the same value, but also runs a test and takes a hundred times as long.
    """
    return float((np.sign(own[:, None] - other[None]) + 1).mean() / 2)


def differences(scores: Scores, name: str) -> dict[tuple[str, str], Estimate]:
    """Return an aggregate of the first setting minus that of the second, for each pair of settings.

    :param name: name of the aggregate, a key of ``AGGREGATES``
    """
    function = AGGREGATES[name]
    values = {label: function(own) for label, own in scores.items()}
    with _reproducible():
        drawn = {label: _bootstrapped(own, function) for label, own in scores.items()}
    found = {}
    for one, other in permutations(scores, 2):
        certain = min(len(scores[one]), len(scores[other])) > 1
        ends = np.percentile(drawn[one] - drawn[other], [2.5, 97.5]) if certain else [np.nan, np.nan]
        found[one, other] = Estimate(float(values[one] - values[other]), float(ends[0]), float(ends[1]))
    return found


def _bootstrapped(own: np.ndarray, function: Callable[..., float]) -> np.ndarray:
    """Return the values of a function for resampled seeds. Each environment's seeds are resampled separately."""
    return library.StratifiedBootstrap(own).apply(function, reps=REPETITIONS)[:, 0]


def taus(scores: Scores) -> np.ndarray:
    """Return the thresholds of performance profiles: from the lowest score, but not below -1, to the highest."""
    found = np.concatenate([own.ravel() for own in scores.values()])
    return np.linspace(max(found.min(), -1.0), found.max(), 61)


def profiles(scores: Scores) -> Intervals:
    """Return the performance profile of each setting: the share of runs with a score above each of :func:`taus`."""
    with _reproducible():
        return library.create_performance_profile(scores, taus(scores), reps=PROFILE_REPETITIONS)


def efficiency(curves: Mapping[str, np.ndarray]) -> Intervals:
    """Return the interquartile mean of each setting's normalised curves at each point.

    :param curves: arrays of shape ``(seeds, environments, points)``, by setting
    """

    def iqm(of: np.ndarray) -> np.ndarray:
        return trim_mean(of.reshape(-1, of.shape[-1]), 0.25, axis=0)

    with _reproducible():
        return library.get_interval_estimates(curves, iqm, reps=PROFILE_REPETITIONS)


def bands(curves: Mapping[str, np.ndarray]) -> Intervals:
    """Return the mean over seeds of each setting's curves, shape ``(seeds, points)``."""
    with _reproducible():
        # Add an axis for a single environment, in which the seeds are resampled.
        matrices = {label: seeds[:, None] for label, seeds in curves.items()}
        return library.get_interval_estimates(matrices, lambda seeds: seeds.mean(axis=(0, 1)), reps=PROFILE_REPETITIONS)
