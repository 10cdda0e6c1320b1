"""The observations of all environments as one array, or a dictionary or tuple of arrays, and their rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs


def _each(function: Callable[[np.ndarray], Any], observations: VecEnvObs) -> Any:
    """Apply a function to each array."""
    if isinstance(observations, dict):
        return {key: function(array) for key, array in observations.items()}
    return tuple(map(function, observations)) if isinstance(observations, tuple) else function(observations)


def _arrays(observations: VecEnvObs) -> list[np.ndarray]:
    if isinstance(observations, dict):
        return list(observations.values())
    return list(observations) if isinstance(observations, tuple) else [observations]


def owned(observations: VecEnvObs) -> VecEnvObs:
    """A copy, since many backends use the memory of an observation again in the next step."""
    return _each(np.array, observations)


def take(observations: VecEnvObs, index: int | np.ndarray) -> Any:
    """A copy of the row of one environment, or of the rows in a mask."""
    return _each(lambda array: array[index].copy(), observations)


def count(observations: VecEnvObs) -> int:
    """The number of rows."""
    return len(_arrays(observations)[0])


def put(observations: VecEnvObs, mask: np.ndarray, new: VecEnvObs) -> None:
    """Replace the rows in the mask by those of ``new``, which has only these."""
    for array, values in zip(_arrays(observations), _arrays(new), strict=True):
        array[mask] = values


def equal(first: VecEnvObs, second: VecEnvObs) -> bool:
    """Whether all values are equal, where NaN equals NaN."""
    pairs = zip(_arrays(first), _arrays(second), strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)
