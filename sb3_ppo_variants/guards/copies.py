"""Copies of observations and infos that are cheaper than deep copies where possible."""

from copy import copy, deepcopy
from typing import Any

import numpy as np

IMMUTABLE = frozenset({bool, int, float, str, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})


def copied(info: dict[str, Any]) -> dict[str, Any]:
    """Return a copy that is as independent as a deep copy."""
    if type(info) is not dict:
        return deepcopy(info)
    copied = info.copy()
    for key, value in info.items():
        if type(value) not in IMMUTABLE:
            if not _is_flat(value):
                return deepcopy(info)
            copied[key] = copy(value)
    return copied


def owned(value: Any) -> Any:
    """Return a copy of an observation, because the environment may write the next one to the same memory."""
    if type(value) is dict:
        return {key: owned(part) for key, part in value.items()}
    return value.copy() if type(value) is np.ndarray and not value.dtype.hasobject else deepcopy(value)


def _is_flat(value: Any) -> bool:
    """Return whether a shallow copy of an array or dict is as independent as a deep copy."""
    if type(value) is np.ndarray:
        return not value.dtype.hasobject
    return type(value) is dict and IMMUTABLE.issuperset(map(type, value.values()))
