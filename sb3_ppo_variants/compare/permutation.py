"""Whether settings differ beyond noise: permutation tests over seeds, corrected for the number of tests.

If two settings learn the same, any run in an environment could be one of either. The test divides the runs of each
environment between the two settings in all ways, or in many random ones. Its p value is the share of these divisions in
which the means differ at least as much as they do. It is exact with any number of seeds and any distribution of scores.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np

# How often at least one of the settings that are the same may be called different.
ALPHA = 0.05
# If there are more divisions than this, so many random ones are tried.
SAMPLES = 9_999


def p_value(one: np.ndarray, other: np.ndarray, samples: int = SAMPLES) -> float:
    """Return the two-sided p value of the difference of the means of two settings.

    The scale of each environment must not depend on which of the two settings a run is of.

    :param one: scores, shape ``(seeds, environments)``
    :param other: scores in the same environments; the number of seeds may differ
    :param samples: number of random divisions, if there are more than this
    """
    return float(p_values([(one, other)], samples)[0])


def p_values(pairs: Sequence[tuple[np.ndarray, np.ndarray]], samples: int = SAMPLES) -> np.ndarray:
    """Return :func:`p_value` of each pair of settings."""
    found = np.empty(len(pairs))
    shapes = np.array([(len(one), len(other), one.shape[1]) for one, other in pairs])
    for shape in {tuple(shape) for shape in shapes.tolist()}:
        of_shape = np.flatnonzero((shapes == shape).all(axis=1)).tolist()
        weights, complete = _divisions(*shape, samples)
        pooled = np.stack([np.concatenate(pairs[number]).T.ravel() for number in of_shape], axis=1)
        # Sums in another order differ in their last digits.
        least = [abs(pairs[number][0].mean() - pairs[number][1].mean()) for number in of_shape]
        reached = (np.abs(weights @ pooled) >= least - 1e-9 * np.ptp(pooled, axis=0)).sum(axis=0)
        # The division that was found is one of the random ones.
        found[of_shape] = reached / len(weights) if complete else (reached + 1) / (len(weights) + 1)
    return found


@lru_cache(maxsize=8)
def _divisions(first: int, second: int, envs: int, samples: int) -> tuple[np.ndarray, bool]:
    """Return what to multiply pooled scores with for the differences of means, and whether all divisions are there.

    :return: array of shape ``(divisions, environments * seeds of both)``
    """
    runs = first + second
    ways = math.comb(runs, first)
    complete = ways**envs <= samples
    if complete:
        of_env = np.zeros((ways, runs), dtype=bool)
        for row, chosen in zip(of_env, combinations(range(runs), first), strict=True):
            row[list(chosen)] = True
        chosen_ways = np.indices((ways,) * envs).reshape(envs, -1).T
        belongs = of_env[chosen_ways]
    else:
        keys = np.random.default_rng(0).random((samples, envs, runs))
        belongs = keys.argsort(axis=2) < first
    weights = np.where(belongs, 1 / first, -1 / second) / envs
    return weights.reshape(len(weights), -1), complete


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p values for their number by Holm's method, which holds however the tests depend on each other."""
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return corrected


def smallest(first: int, second: int, envs: int, samples: int = SAMPLES) -> float:
    """Return the smallest p value that a test with so many seeds of two settings can give."""
    divisions = math.comb(first + second, first) ** envs
    # With equal numbers of seeds, exchanging the two settings gives the same difference.
    return max((2 if first == second else 1) / divisions, 1 / (samples + 1) if divisions > samples else 0.0)


def samples_for(tests: int) -> int:
    """Return how many random divisions so many tests need, so that a difference can be significant."""
    return max(SAMPLES, math.ceil(2 * tests / ALPHA))


def seeds_needed(tests: int, envs: int) -> int:
    """Return the number of seeds of each setting with which a difference can be significant among so many tests."""
    seeds = 2
    while smallest(seeds, seeds, envs, samples_for(tests)) > ALPHA / tests:
        seeds += 1
    return seeds
