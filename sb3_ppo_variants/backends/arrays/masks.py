"""Action masks over arrays."""

import numpy as np

# Replaces the logits of masked actions, as in sb3-contrib: low enough for a probability p of 0, and finite, so that
# p log p is 0 too.
LOWEST = -1e8


def masked(logits: np.ndarray, masks: np.ndarray | None) -> np.ndarray:
    """Return the output of the policy network, with probability 0 for masked actions.

    :param logits: shape ``(batch, outputs)``
    :param masks: True for allowed actions, same shape; ``None`` allows all actions
    """
    return logits if masks is None else np.where(masks, logits, logits.dtype.type(LOWEST))


def masked_gradient(gradients: tuple[np.ndarray, ...], masks: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """Return the gradients of a loss with respect to the logits before masking.

    :param gradients: with respect to the result of :func:`masked`, and to the distribution's own parameters
    """
    return gradients if masks is None else (gradients[0] * masks, *gradients[1:])
