"""The test whether observations are finite, by the library."""

from collections.abc import Callable

import numpy as np

from sb3_ppo_variants.backends.native.library import library
from sb3_ppo_variants.backends.native.structures import Numbers
from sb3_ppo_variants.guards.finite import finite_test
from sb3_ppo_variants.rollouts.normalized import FLOATS


def native_test(array: np.ndarray) -> Callable[[], bool]:
    """Return the fastest test of an array; see :func:`~sb3_ppo_variants.guards.finite.finite_test`."""
    found = library()
    if found is None or array.dtype not in FLOATS:
        return finite_test(array)
    return found.are_finite(array.dtype, Numbers(array, array.size))
