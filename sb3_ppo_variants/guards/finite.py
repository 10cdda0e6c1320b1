"""Checks whether arrays are finite."""

from math import isfinite

import numpy as np


def is_finite(array: np.ndarray) -> bool:
    """Return whether no number in a floating-point array of any shape is NaN or infinite.

    The sum of squares shows this for all but the largest numbers, in half the time of a test of each number. Among
    NumPy's products, ``vdot`` does not warn about overflow.
    """
    return isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())
