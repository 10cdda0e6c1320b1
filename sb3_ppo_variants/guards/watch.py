"""Errors and warnings about the values that environments return, with the step of the run."""

import warnings
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from sb3_ppo_variants.errors import EnvOutputError, NonFiniteError

# From here on, the square of a return overflows single precision, and so does the value loss.
HUGE_REWARD = float(np.finfo(np.float32).max) ** 0.5


class Watch:
    """Raises errors and warnings that name the environment and, if known, the step of the model."""

    def __init__(self, steps_taken: Callable[[], int | None]):
        self._steps_taken = steps_taken
        self._warned: set[str] = set()

    def refuse(self, quantity: str, found: str, allowed: str, env_index: int | None) -> NoReturn:
        """:raises EnvOutputError: always, saying what was found and what is allowed"""
        raise EnvOutputError(quantity, f"{found}, but must be {allowed}", env_index, self._steps_taken())

    def refuse_number(self, quantity: str, value: object, env_index: int | None) -> NoReturn:
        """:raises NonFiniteError: always"""
        raise NonFiniteError(quantity, f"not finite: {value}", env_index, self._steps_taken())

    def note_reward(self, reward: float, env_index: int) -> None:
        """Warn once per run if a reward is huge.

        :raises NonFiniteError: if the reward is NaN, or infinite in single precision
        """
        with np.errstate(over="ignore"):
            size = abs(float(np.float32(reward)))
        if not size < np.inf:
            self.refuse_number("reward", reward, env_index)
        if size >= HUGE_REWARD:
            self._warn(
                "reward",
                f"The reward of environment {env_index} at step {self._steps_taken()} is {reward:g}. Rewards of "
                f"{HUGE_REWARD:.2g} or more overflow the value loss in single precision: scale or normalize them.",
            )

    def note_lost_end(self, env_index: int) -> None:
        """Warn once per run that an environment may overwrite the last observation of an episode."""
        self._warn(
            "end",
            f"In environment {env_index} at step {self._steps_taken()}, a time limit ended an episode whose last "
            "observation equals the first one of the next episode. If the environment writes all observations to the "
            "same array, the last one is lost, and advantages are wrong: return a copy of it, or use DummyVecEnv or "
            "SafeSubprocVecEnv, which copy it.",
        )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{message} This warning is shown once per run.")


class TypesOnly(Watch):
    """A watch that accepts any number as a reward."""

    def note_reward(self, reward: float, env_index: int) -> None:
        """Accept the reward."""
