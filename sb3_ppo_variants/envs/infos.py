"""gymnasium's one info of arrays for all environments, as SB3's info for each."""

from copy import deepcopy
from typing import Any

import numpy as np

Infos = list[dict[str, Any]]


def per_env(vector_infos: dict[str, Any], n_envs: int) -> Infos:
    """Split the info of a vector environment.

    A Boolean array ``_key`` beside ``key`` says which environments have a value. ALE and EnvPool have no such arrays:
    there all environments do. A value that is not one for each environment, such as a number, goes to all. Dictionaries
    are split likewise, and no info shares memory with the arrays.
    """
    infos: Infos = [{} for _ in range(n_envs)]
    for key, values in vector_infos.items():
        if key[:1] == "_" and key[1:] in vector_infos:
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
