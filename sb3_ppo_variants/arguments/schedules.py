"""The value of a schedule in an update."""

from contextlib import suppress
from typing import Any

from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule

from sb3_ppo_variants.arguments.rules import NON_NEGATIVE
from sb3_ppo_variants.errors import refuse


def as_schedule(value: float | Schedule) -> FloatSchedule:
    """Return a number or a schedule as SB3's class, which itself takes no number of NumPy but ``float64``."""
    return FloatSchedule(value if callable(value) else float(value))


def current_value(name: str, schedule: float | Schedule, progress_remaining: float) -> float:
    """Return the value of a schedule in the current update.

    The last rollout may take more steps than requested. SB3's remaining progress is then negative, where a schedule may
    be negative or undefined. The value at 0, where the schedule should have ended, is then used instead.

    :param name: name of the argument, for the error message
    :param schedule: a schedule, or a number for a constant schedule
    :param progress_remaining: from 1 to 0, or slightly less
    :return: a finite number >= 0
    :raises ArgumentError: if the schedule returns anything else
    """
    if progress_remaining < 0:
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):
            return _value_at(name, schedule, progress_remaining)
    return _value_at(name, schedule, max(progress_remaining, 0.0))


def _value_at(name: str, schedule: float | Schedule, progress_remaining: float) -> float:
    value: Any = as_schedule(schedule).value_schedule(progress_remaining)
    with suppress(TypeError, ValueError):  # If it is not a number, refuse() names it below.
        if NON_NEGATIVE.accepts(float(value)):
            return float(value)
    refuse(f"{name}({progress_remaining:g})", value, f"a schedule that returns {NON_NEGATIVE.allowed} at any progress")
