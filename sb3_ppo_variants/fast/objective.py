"""The losses of :mod:`sb3_ppo_variants.losses` over arrays, with their gradients written out.

Each function returns a loss, the mean over the batch, and its gradient with respect to its first argument; arrays have
the shape ``(batch,)``.
"""

import numpy as np

from sb3_ppo_variants.losses import ADVANTAGE_EPSILON


def normalize_advantages(advantages: np.ndarray) -> np.ndarray:
    """:func:`sb3_ppo_variants.losses.normalize_advantages`."""
    n = len(advantages)
    if n <= 1:
        return advantages
    centred = advantages - mean(advantages)
    std = (float(centred.dot(centred)) / (n - 1)) ** 0.5
    centred /= std + ADVANTAGE_EPSILON
    return centred


def surrogate_loss(
    log_ratio: np.ndarray, ratio: np.ndarray, advantages: np.ndarray, clip_range: float | None
) -> tuple[float, np.ndarray]:
    """-L^CPI or, with ``clip_range``, -L^CLIP: equations 6 and 7.

    The gradient is with respect to ``log_ratio``: r A where the minimum is the unclipped term, else 0.

    :param log_ratio: log r(theta)
    :param ratio: r(theta)
    """
    objective = ratio * advantages
    if clip_range is None:
        return -mean(objective), objective / -len(objective)
    clipped = np.minimum(np.maximum(ratio, 1 - clip_range), 1 + clip_range)
    clipped *= advantages
    gradient = objective * (objective <= clipped)
    gradient /= -len(objective)
    return -mean(np.minimum(objective, clipped)), gradient


def value_loss(
    values: np.ndarray, old_values: np.ndarray, returns: np.ndarray, clip_range_vf: float | None
) -> tuple[float, np.ndarray]:
    """:func:`sb3_ppo_variants.losses.value_loss`."""
    error = values - returns
    gradient = error * (2.0 / len(error))
    if clip_range_vf is None:
        return mean_square(error), gradient
    moved = values - old_values
    clipped_error = old_values - returns
    clipped_error += np.minimum(np.maximum(moved, -clip_range_vf), clip_range_vf)
    squared, clipped_squared = error * error, clipped_error * clipped_error
    gradient *= (np.abs(moved) <= clip_range_vf) | (squared > clipped_squared)
    return mean(np.maximum(squared, clipped_squared)), gradient


def approximate_kl(log_ratio: np.ndarray, ratio: np.ndarray) -> float:
    """:func:`sb3_ppo_variants.losses.approximate_kl`."""
    return mean((ratio - 1.0) - log_ratio)


def clip_fraction(ratio: np.ndarray, clip_range: float) -> float:
    """:func:`sb3_ppo_variants.losses.clip_fraction`."""
    return int(np.count_nonzero(np.abs(ratio - 1.0) > clip_range)) / len(ratio)


def mean(array: np.ndarray) -> float:
    """The mean, without the checks that make NumPy's own slow for small arrays."""
    return float(np.add.reduce(array)) / len(array)


def mean_square(array: np.ndarray) -> float:
    """The mean of the squares."""
    return float(array.dot(array)) / len(array)
