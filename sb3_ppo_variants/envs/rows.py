"""The observations of all environments as one array, or a dictionary or tuple of arrays, and their rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs


def _each(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply a function to corresponding arrays."""
    if isinstance(first, dict):
        return {key: function(first[key], *(other[key] for other in others)) for key in first}
    if isinstance(first, tuple):
        return tuple(function(*parts) for parts in zip(first, *others, strict=True))
    return function(first, *others)


def _arrays(observations: Any) -> list[np.ndarray]:
    if isinstance(observations, dict):
        return list(observations.values())
    return list(observations) if isinstance(observations, tuple) else [observations]


def owned(observations: Any) -> Any:
    """A copy, since many backends use the memory of an observation again at the next step."""
    return _each(np.array, observations)


def row(observations: VecEnvObs, index: int) -> Any:
    """A copy of the observation of one environment."""
    return _each(lambda array: array[index].copy(), observations)


def count(observations: VecEnvObs) -> int:
    """The number of environments observed."""
    return len(_arrays(observations)[0])


def put(observations: VecEnvObs, mask: np.ndarray, new: VecEnvObs) -> None:
    """Replace the rows in the mask by those of ``new``, which has only these."""
    for array, values in zip(_arrays(observations), _arrays(new), strict=True):
        array[mask] = values


def take(observations: VecEnvObs, mask: np.ndarray) -> Any:
    """The rows in the mask."""
    return _each(lambda array: array[mask], observations)


def equal(first: VecEnvObs, second: VecEnvObs) -> bool:
    """Whether two are the same, in which NaN is the same as NaN."""
    pairs = zip(_arrays(first), _arrays(second), strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)
