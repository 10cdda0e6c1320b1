"""Describes values with words that are the same in all processes, so that they can compare what they must share."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass

import numpy as np
import torch as th

from sb3_ppo_variants.errors import ArgumentError

# The remaining progress at which schedules are compared when training begins.
THROUGHOUT = (1.0, 0.5, 0.0)


def describe(value: object, at: Sequence[float] = THROUGHOUT) -> str:
    """Describe a value with words that are the same in all processes.

    :param at: the remaining progress at which to compare schedules, which are described by their values
    """
    if callable(value) and not isinstance(value, type | th.nn.Module):
        with suppress(Exception):  # It is no schedule, but a function or an object of the user's own.
            values = [np.asarray(value(progress)).item() for progress in at]
            return str(values if len(set(values)) > 1 else values[0])
    if is_dataclass(value) and not isinstance(value, type):  # An objective or updates, which may contain functions.
        parts = [f"{field.name}={describe(getattr(value, field.name), at)}" for field in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    return re.sub(" at 0x[0-9a-fA-F]+", "", str(_sort(value)))


def _sort(value: object) -> object:
    """Replace sets, whose order differs between processes, by sorted lists, and sort dicts; also within lists."""
    if isinstance(value, set | frozenset):
        return sorted(map(_sort, value), key=repr)
    if type(value) is dict:
        return {key: _sort(value[key]) for key in sorted(value, key=repr)}
    if type(value) is tuple:
        return tuple(map(_sort, value))
    return [*map(_sort, value)] if type(value) is list else value


def refuse_differences(each: Sequence[Mapping[str, str]]) -> None:
    """Check that the descriptions of all processes, in the order of their ranks, are the same.

    :raises ArgumentError: if one differs, with its name, the ranks and their values
    """
    for rank, other in enumerate(each):
        for name in {**each[0], **other}:
            first, own = each[0].get(name, "missing"), other.get(name, "missing")
            if first != own:
                raise ArgumentError(
                    f"{name} is {first} in rank 0 and {own} in rank {rank}: all processes must have the same value. If "
                    "a callback sets it, let it do so in all of them"
                )
