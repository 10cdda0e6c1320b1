"""Masks of actions over arrays."""

import numpy as np

# In place of the logits of masked actions, as in sb3-contrib: low enough for probabilities of 0, and finite, so that
# these times their logarithms are 0 too.
LOWEST = -1e8


def masked(logits: np.ndarray, masks: np.ndarray | None) -> np.ndarray:
    """The output of the policy network, where actions that are masked have the probability 0.

    :param logits: shape ``(batch, outputs)``
    :param masks: True for what is allowed, of the same shape; ``None`` allows everything
    """
    return logits if masks is None else np.where(masks, logits, logits.dtype.type(LOWEST))


def masked_gradient(gradients: tuple[np.ndarray, ...], masks: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """The gradients of a loss with respect to the logits before they were masked.

    :param gradients: with respect to what :func:`masked` returned, and to parameters of the distribution
    """
    return gradients if masks is None else (gradients[0] * masks, *gradients[1:])
