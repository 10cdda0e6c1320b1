"""The losses of :mod:`sb3_ppo_variants.losses` over arrays, with their gradients written out.

A loss function returns the losses of the samples and the gradient of their mean. Arrays have the shape ``(batch,)``.
"""

import numpy as np

from sb3_ppo_variants.losses import ADVANTAGE_EPSILON


def normalize_advantages(advantages: np.ndarray) -> np.ndarray:
    """:func:`sb3_ppo_variants.losses.normalize_advantages` of each minibatch, shape ``(..., batch)``."""
    n = advantages.shape[-1]
    if n <= 1:
        return advantages
    centred = advantages - np.add.reduce(advantages, axis=-1, keepdims=True) / n
    variance = np.add.reduce(centred * centred, axis=-1, keepdims=True) / (n - 1)
    return centred / (np.sqrt(variance) + ADVANTAGE_EPSILON)


def surrogate_loss(
    ratio: np.ndarray, advantages: np.ndarray, clip_range: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """-L^CPI or, with ``clip_range``, -L^CLIP: equations 6 and 7.

    The gradient is with respect to log r(theta): -r A where the minimum is the unclipped term, else 0.

    :param ratio: r(theta)
    """
    objective = ratio * advantages
    if clip_range is None:
        losses = -objective
        return losses, losses / len(losses)
    clipped = np.minimum(np.maximum(ratio, 1 - clip_range), 1 + clip_range)
    clipped *= advantages
    gradient = objective * (objective <= clipped)
    gradient /= -len(objective)
    return -np.minimum(objective, clipped), gradient


def value_loss(
    values: np.ndarray, old_values: np.ndarray, returns: np.ndarray, clip_range_vf: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """:func:`sb3_ppo_variants.losses.value_loss`; the gradient is with respect to ``values``."""
    error = values - returns
    gradient = error * (2.0 / len(error))
    if clip_range_vf is None:
        return error * error, gradient
    moved = values - old_values
    clipped_error = old_values - returns
    clipped_error += np.minimum(np.maximum(moved, -clip_range_vf), clip_range_vf)
    squared, clipped_squared = error * error, clipped_error * clipped_error
    gradient *= (np.abs(moved) <= clip_range_vf) | (squared > clipped_squared)
    return np.maximum(squared, clipped_squared), gradient


def approximate_kl(log_ratio: np.ndarray) -> np.ndarray:
    """What :func:`sb3_ppo_variants.losses.approximate_kl` is the mean of."""
    return (np.exp(log_ratio) - 1.0) - log_ratio


def is_clipped(log_ratio: np.ndarray, clip_range: float) -> np.ndarray:
    """What :func:`sb3_ppo_variants.losses.clip_fraction` is the mean of."""
    return np.abs(np.exp(log_ratio) - 1.0) > clip_range
