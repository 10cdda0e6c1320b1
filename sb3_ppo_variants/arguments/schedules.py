"""The value of a schedule in one update."""

from contextlib import suppress

from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule

from sb3_ppo_variants.arguments.rules import NON_NEGATIVE
from sb3_ppo_variants.errors import refuse


def current_value(name: str, schedule: float | Schedule, progress_remaining: float) -> float:
    """The value of a schedule in the present update.

    The last rollout may take more steps than were asked for. SB3's remaining progress is then negative, and so is the
    value of a schedule that is proportional to it; the value at 0 is used instead, where the schedule was to end.

    :param name: name of the argument, for the error
    :param schedule: a schedule, or a number for a constant one
    :param progress_remaining: from 1 to 0, or slightly less
    :return: a finite number >= 0
    :raises ArgumentError: if the schedule returns anything else
    """
    for progress in (progress_remaining, max(progress_remaining, 0.0)):
        value = FloatSchedule(schedule).value_schedule(progress)
        with suppress(TypeError, ValueError):  # To be refused by name.
            if NON_NEGATIVE.accepts(float(value)):
                return float(value)
    refuse(f"{name}({progress_remaining:g})", value, f"a schedule that returns {NON_NEGATIVE.allowed} at any progress")
