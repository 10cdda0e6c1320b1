"""How sure a comparison is: rliable's aggregates with stratified bootstrap intervals.

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
    """The value of each function for each setting, by setting and function.

    The scores are the matrices that the functions take. There is no interval where there are fewer than two seeds, of
    which resampling would make one without a width.
    """
    if not scores:
        return {}
    with _reproducible():
        points, intervals = library.get_interval_estimates(
            # It resamples matrices in a list independently of each other.
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
    """Mean, interquartile mean, optimality gap and median of each setting."""
    return _estimates({label: [own] for label, own in scores.items()}, AGGREGATES)


def against(scores: Scores, baseline: str) -> dict[str, dict[str, Estimate]]:
    """Each setting but the baseline compared with it: probability of improvement and difference of the IQM."""
    if baseline not in scores:
        return {}
    pairs = {label: [own, scores[baseline]] for label, own in scores.items() if label != baseline}
    functions = {
        "P(better)": probability_of_improvement,
        "IQM difference": lambda own, other: metrics.aggregate_iqm(own) - metrics.aggregate_iqm(other),
    }
    return _estimates(pairs, functions)


def probability_of_improvement(own: np.ndarray, other: np.ndarray) -> float:
    """The share of pairs of runs in which the first is better, ties by half, averaged over environments.

    It is what rliable's function of the name returns, which also makes a test and so takes a hundred times as long.
    """
    return float((np.sign(own[:, None] - other[None]) + 1).mean() / 2)


def differences(scores: Scores, name: str) -> dict[tuple[str, str], Estimate]:
    """An aggregate of the first setting minus that of the second, for each two.

    :param name: of the aggregate, a key of ``AGGREGATES``
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
    """The values of a function for resampled seeds, those of each environment by themselves."""
    return library.StratifiedBootstrap(own).apply(function, reps=REPETITIONS)[:, 0]


def taus(scores: Scores) -> np.ndarray:
    """The scores of a performance profile: from the lowest, or -1 if that is lower, to the highest."""
    found = np.concatenate([own.ravel() for own in scores.values()])
    return np.linspace(max(found.min(), -1.0), found.max(), 61)


def profiles(scores: Scores) -> Intervals:
    """The performance profile of each setting: the share of runs with a score above each of :func:`taus`."""
    with _reproducible():
        return library.create_performance_profile(scores, taus(scores), reps=PROFILE_REPETITIONS)


def efficiency(curves: Mapping[str, np.ndarray]) -> Intervals:
    """The interquartile mean of each setting's normalised curves, shape ``(seeds, environments, points)``, by point."""

    def iqm(of: np.ndarray) -> np.ndarray:
        return trim_mean(of.reshape(-1, of.shape[-1]), 0.25, axis=0)

    with _reproducible():
        return library.get_interval_estimates(curves, iqm, reps=PROFILE_REPETITIONS)


def bands(curves: Mapping[str, np.ndarray]) -> Intervals:
    """The mean over seeds of each setting's curves, shape ``(seeds, points)``."""
    with _reproducible():
        # One environment, in which seeds are resampled.
        matrices = {label: seeds[:, None] for label, seeds in curves.items()}
        return library.get_interval_estimates(matrices, lambda seeds: seeds.mean(axis=(0, 1)), reps=PROFILE_REPETITIONS)
