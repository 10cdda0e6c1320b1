"""Compares what processes that train together must have in common."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from sb3_ppo_variants.errors import ArgumentError

# The remaining progress at which schedules are compared when training begins.
THROUGHOUT = (1.0, 0.5, 0.0)


def described(value: Any, at: Sequence[float] = THROUGHOUT) -> str:
    """Describe a value with words that are the same in all processes.

    :param at: the remaining progress at which to compare schedules, which are described by their values
    """
    if callable(value) and not isinstance(value, type):
        values = [value(progress) for progress in at]
        return str(values if len(set(values)) > 1 else values[0])
    if is_dataclass(value) and not isinstance(value, type):  # An objective or updates, which may contain functions.
        parts = [f"{field.name}={described(getattr(value, field.name), at)}" for field in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    return re.sub(" at 0x[0-9a-fA-F]+", "", str(value))


def refuse_differences(each: Sequence[Mapping[str, str]]) -> None:
    """Check that all processes describe the same.

    :param each: the descriptions of each process by name, in the order of their ranks
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
