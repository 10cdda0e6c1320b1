"""Batched observations and infos of a vector environment, and those of single environments.

Observations are an array, or a dictionary or tuple of arrays, with one row per environment.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from sb3_ppo_variants.guards.outputs import copy_info

Infos = list[dict[str, Any]]


class OfEach(dict[Any, Any]):
    """Infos by the indices of their environments."""


def _each(function: Callable[[np.ndarray], Any], observations: VecEnvObs) -> Any:
    """Apply a function to each array."""
    if isinstance(observations, dict):
        return {key: function(array) for key, array in observations.items()}
    return tuple(map(function, observations)) if isinstance(observations, tuple) else function(observations)


def _arrays(observations: VecEnvObs) -> list[np.ndarray]:
    if isinstance(observations, dict):
        return list(observations.values())
    return list(observations) if isinstance(observations, tuple) else [observations]


def copy_rows(observations: VecEnvObs) -> VecEnvObs:
    """Return a copy, because many backends reuse the memory of observations in the next step."""
    return _each(np.array, observations)


def take(observations: VecEnvObs, index: int | np.ndarray) -> Any:
    """Return a copy of the row of one environment, or of the rows that a mask selects."""
    return _each(lambda array: array[index].copy(), observations)


def count(observations: VecEnvObs) -> int:
    """Return the number of rows."""
    return len(_arrays(observations)[0])


def put(observations: VecEnvObs, mask: np.ndarray, new: VecEnvObs) -> None:
    """Replace the rows that a mask selects with ``new``, which contains only those rows."""
    for array, values in zip(_arrays(observations), _arrays(new), strict=True):
        array[mask] = values


def equal(first: VecEnvObs, second: VecEnvObs) -> bool:
    """Check whether all values are equal, treating NaN as equal to NaN."""
    pairs = zip(_arrays(first), _arrays(second), strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def collect(vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
    """Add the info of an environment, as gymnasium's ``_add_info`` does, but without merging it with the others.

    ``_add_info`` writes values of all environments into an array with the type and shape of the first, so ``0.5`` after
    ``0`` becomes ``0``.
    """
    of_each = vector_infos if isinstance(vector_infos, OfEach) else OfEach()
    of_each.setdefault(env_num, {}).update(copy_info(env_info))
    return of_each


def collect_infos(env: VectorEnv) -> None:
    """Make gymnasium's own vector environments return :class:`OfEach`, unless a wrapper reads their infos."""
    if type(env) in (SyncVectorEnv, AsyncVectorEnv):
        env._add_info = collect  # type: ignore[method-assign]


def per_env(vector_infos: dict[Any, Any], n_envs: int) -> Infos:
    """Split the info of a vector environment into one info per environment.

    A Boolean array ``_key`` next to ``key`` says which environments have a value. ALE and EnvPool have no such arrays,
    because all environments have a value. A value without one entry per environment, such as a number, is copied to
    all. Dictionaries are split in the same way. No info shares memory with the arrays.
    """
    if isinstance(vector_infos, OfEach):
        return [vector_infos.get(i, {}) for i in range(n_envs)]
    infos: Infos = [{} for _ in range(n_envs)]
    masks = {f"_{key}" for key in vector_infos}
    for key, values in vector_infos.items():
        if key in masks:
            continue
        has_value = vector_infos.get(f"_{key}")
        for i, value in enumerate(_values(values, n_envs)):
            if has_value is None or has_value[i]:
                infos[i][key] = value
    return infos


def _values(values: Any, n_envs: int) -> list[Any]:
    if isinstance(values, dict):
        return per_env(values, n_envs)
    if not (isinstance(values, list | tuple) or np.ndim(values) > 0) or len(values) != n_envs:
        return [deepcopy(values) for _ in range(n_envs)]
    if isinstance(values, list | tuple) or values.dtype.hasobject:
        return deepcopy(list(values))
    return values.tolist() if values.ndim == 1 else list(values.copy())
