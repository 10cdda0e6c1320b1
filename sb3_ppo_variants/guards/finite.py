"""Whether arrays are finite."""

from math import isfinite

import numpy as np


def is_finite(array: np.ndarray) -> bool:
    """Whether no number is NaN or infinite; floating-point arrays of any shape.

    The sum of squares says so of all but the largest numbers, in a quarter of the time that looking at each takes.
    """
    flat = array.ravel()
    return isfinite(flat.dot(flat)) or bool(np.isfinite(array).all())
