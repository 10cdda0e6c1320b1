"""How sure a comparison is: rliable's aggregates with stratified bootstrap intervals.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from rliable import library, metrics

from sb3_ppo_variants.benchmark.compare.paper import Estimate

# Matrices of normalised scores, shape (seeds, environments), by setting.
Scores = Mapping[str, np.ndarray]
REPETITIONS = 2000
PROFILE_REPETITIONS = 500
TAUS = np.linspace(-0.5, 1.0, 61)
AGGREGATES = {
    "mean": metrics.aggregate_mean,
    "IQM": metrics.aggregate_iqm,
    "optimality gap": metrics.aggregate_optimality_gap,
}


@dataclass(frozen=True)
class Profile:
    """The share of runs with a score above each of ``TAUS``, with its interval; arrays of that length."""

    share: np.ndarray
    low: np.ndarray
    high: np.ndarray


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
    scores: Mapping[str, object], functions: Mapping[str, Callable[..., float]]
) -> dict[str, dict[str, Estimate]]:
    """The value of each function for each key of the scores, by key and function.

    Without an interval where there are fewer than two seeds, of which resampling would make one without a width.
    """
    if not scores:
        return {}
    with _reproducible():
        points, intervals = library.get_interval_estimates(
            scores, lambda *x: np.array([function(*x) for function in functions.values()]), reps=REPETITIONS
        )
    return {
        key: {
            name: Estimate(*map(float, numbers if _seeds(scores[key]) > 1 else (numbers[0], np.nan, np.nan)))
            for name, *numbers in zip(functions, points[key], *intervals[key], strict=True)
        }
        for key in scores
    }


def _seeds(scores: Any) -> int:
    """The number of seeds of a matrix, or the smallest of several."""
    return min(map(len, scores)) if isinstance(scores, list) else len(scores)


def aggregates(scores: Scores) -> dict[str, dict[str, Estimate]]:
    """Mean, interquartile mean and optimality gap of each setting."""
    return _estimates(scores, AGGREGATES)


def against(scores: Scores, baseline: str) -> dict[str, dict[str, Estimate]]:
    """Each setting but the baseline compared with it: probability of improvement and difference of the IQM."""
    if baseline not in scores:
        return {}
    pairs = {label: [own, scores[baseline]] for label, own in scores.items() if label != baseline}
    return _estimates(pairs, {"P(better)": probability_of_improvement, "IQM difference": _iqm_difference})


def _iqm_difference(own: np.ndarray, other: np.ndarray) -> float:
    return metrics.aggregate_iqm(own) - metrics.aggregate_iqm(other)


def probability_of_improvement(own: np.ndarray, other: np.ndarray) -> float:
    """The share of pairs of runs in which the first is better, ties by half, averaged over environments.

    What rliable's function of the name returns, which also makes a test of each call and so takes a hundred times as
    long.

    :param own: shape ``(seeds, environments)``
    :param other: shape ``(other seeds, environments)``
    """
    return float((np.sign(own[:, None] - other[None]) + 1).mean() / 2)


def profiles(scores: Scores) -> dict[str, Profile]:
    """The performance profile of each setting."""
    if not scores:
        return {}
    with _reproducible():
        shares, intervals = library.create_performance_profile(scores, TAUS, reps=PROFILE_REPETITIONS)
    return {label: Profile(shares[label], *intervals[label]) for label in scores}
