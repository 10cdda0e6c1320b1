"""Where a run is, for the errors and warnings about it."""

import warnings
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from sb3_ppo_variants.errors import EnvOutputError, NonFiniteError

# The square of a return from here on is infinite in single precision, and so is the value loss.
HUGE_REWARD = float(np.finfo(np.float32).max) ** 0.5


class Watch:
    """Says what came from which environment at which step.

    :param steps_taken: returns the model's ``num_timesteps``, or ``None`` if they are not known
    """

    def __init__(self, steps_taken: Callable[[], int | None]):
        self._steps_taken = steps_taken
        self._warned = False

    def refuse(self, quantity: str, problem: str, env_index: int | None) -> NoReturn:
        """:raises EnvOutputError: always"""
        raise EnvOutputError(quantity, problem, env_index, self._steps_taken())

    def refuse_number(self, quantity: str, value: object, env_index: int | None) -> NoReturn:
        """:raises NonFiniteError: always"""
        raise NonFiniteError(quantity, f"not finite: {value}", env_index, self._steps_taken())

    def note_reward(self, reward: float, env_index: int) -> None:
        """Warn of a reward that is huge, once in a run.

        :raises NonFiniteError: if it is NaN or infinite in single precision
        """
        with np.errstate(over="ignore"):
            size = abs(float(np.float32(reward)))
        if not size < np.inf:
            self.refuse_number("reward", reward, env_index)
        if size >= HUGE_REWARD and not self._warned:
            self._warned = True
            warnings.warn(
                f"The reward of environment {env_index} at step {self._steps_taken()} is {reward:g}. From "
                f"{HUGE_REWARD:.2g} on, the value loss overflows in single precision: scale or normalize rewards. "
                "There is no second warning in this run."
            )


class TypesOnly(Watch):
    """Takes rewards as they are."""

    def note_reward(self, reward: float, env_index: int) -> None:
        """Not here."""
