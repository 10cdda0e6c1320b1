"""Encodes values as plain JSON, and decodes them without running any code from a file.

Besides JSON's own types, there are words for NumPy arrays and numbers, tuples, deques, spaces, SB3's schedules and the
classes of SB3, sb3-contrib and PyTorch that models are made of. :func:`register_plain` adds words for dataclasses. A
file can use these words and no others.
"""

import base64
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from sb3_ppo_variants.arguments import Values

WORD = "@"
# Classes that a file may name: those of these modules, which are imported for it, that derive from one of the bases.
MODULES = (
    "stable_baselines3.common.",
    "sb3_contrib.common.",
    "sb3_ppo_variants.policies.",
    "torch.nn.modules.",
    "torch.optim.",
)
NAMED_BASES = (th.nn.Module, th.optim.Optimizer, RolloutBuffer)


class NotPlainError(ValueError):
    """A value has no plain form."""


def encode(value: object) -> object:
    """Convert a value to its plain form for ``json.dumps``, or raise a :class:`NotPlainError`."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [encode(item) for item in value]
    for word, (cls, get_parts, _) in WORDS.items():
        # A subclass of another type may have additional state.
        if type(value) is cls or (cls in (type, np.generic) and isinstance(value, cls)):
            return {WORD: word, **{name: encode(part) for name, part in get_parts(value).items()}}
    raise NotPlainError(f"a {type(value).__name__} has no plain form")


def is_plain(value: object) -> bool:
    """Whether a value has a plain form."""
    try:
        encode(value)
    except NotPlainError:
        return False
    return True


def decode(value: Any) -> Any:
    """Convert a plain form to its value, the inverse of :func:`encode`. Other forms may raise anything."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    parts = {name: decode(part) for name, part in value.items()}
    _, _, make = WORDS[parts.pop(WORD)]
    return make(**parts)


def _get_name(cls: type) -> Values:
    name = f"{cls.__module__}.{cls.__qualname__}"
    if not cls.__module__.startswith(MODULES) or not issubclass(cls, NAMED_BASES) or "." in cls.__qualname__:
        raise NotPlainError(f"the class {name} has no plain form")
    return {"name": name}


def _find_class(name: str) -> type:
    module, _, attribute = name.rpartition(".")
    cls = getattr(import_module(module), attribute) if module.startswith(MODULES) else None
    if not isinstance(cls, type) or not issubclass(cls, NAMED_BASES):
        raise ValueError(f"{name} is not a class that a file may name")
    return cls


def _get_array(array: np.ndarray) -> Values:
    if array.dtype.kind not in "biuf":
        raise NotPlainError(f"an array of {array.dtype} has no plain form")
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _make_array(dtype: str, shape: list[int], data: str) -> np.ndarray:
    # NumPy refuses to make objects of bytes.
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()


def _get_items(value: Mapping[object, object]) -> Values:
    return {"items": [[key, item] for key, item in value.items()]}


def _attributes(cls: type, *names: str) -> tuple[type, Callable[[Any], Values], Callable[..., Any]]:
    """Make the entry of a class whose instances are made of the attributes with these names."""
    return cls, lambda value: {name: getattr(value, name) for name in names}, cls


# Maps each word to the type it stands for, a function that returns the parts of a value, and one that rebuilds it.
WORDS: dict[str, tuple[type, Callable[[Any], Values], Callable[..., Any]]] = {
    "tuple": (tuple, lambda value: {"items": [*value]}, lambda items: tuple(items)),
    "dict": (dict, _get_items, lambda items: dict(items)),
    "deque": (
        deque,
        lambda value: {"items": [*value], "maxlen": value.maxlen},
        lambda items, maxlen: deque(items, maxlen),
    ),
    "class": (type, _get_name, _find_class),
    "number": (np.generic, lambda number: {"array": np.asarray(number)}, lambda array: array[()]),
    "array": (np.ndarray, _get_array, _make_array),
    "Dict": (spaces.Dict, lambda space: _get_items(space.spaces), lambda items: spaces.Dict(items)),
    "Tuple": (spaces.Tuple, lambda space: {"items": [*space.spaces]}, lambda items: spaces.Tuple(items)),
    "Box": (
        spaces.Box,
        lambda space: {"low": space.low, "high": space.high},
        lambda low, high: spaces.Box(low, high, dtype=low.dtype.type),
    ),
    "Discrete": _attributes(spaces.Discrete, "n", "start"),
    "MultiBinary": _attributes(spaces.MultiBinary, "n"),
    "MultiDiscrete": (
        spaces.MultiDiscrete,
        lambda space: {"nvec": space.nvec, "start": space.start},
        lambda nvec, start: spaces.MultiDiscrete(nvec, dtype=nvec.dtype.type, start=start),
    ),
    "FloatSchedule": _attributes(FloatSchedule, "value_schedule"),
    "ConstantSchedule": _attributes(ConstantSchedule, "val"),
    "LinearSchedule": _attributes(LinearSchedule, "start", "end", "end_fraction"),
}


def register_plain(*classes: type) -> None:
    """Register dataclasses whose instances are saved as their fields, without pickle, by the name of the class.

    Loading a file calls the class with the values in the file, so its constructor must be harmless, and take a value
    with a plain form for each field.
    """
    WORDS.update({cls.__name__: _attributes(cls, *(field.name for field in fields(cls))) for cls in classes})
