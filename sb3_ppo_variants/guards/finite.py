"""Whether arrays are finite."""

from math import isfinite

import numpy as np


def is_finite(array: np.ndarray) -> bool:
    """Whether no number is NaN or infinite; floating-point arrays of any shape.

    The sum of squares says so of all but the largest numbers, in half the time that looking at each takes. Of NumPy's
    products this one does not warn if it overflows.
    """
    return isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())
