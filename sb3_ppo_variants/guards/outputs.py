"""What one environment may return."""

from numbers import Real
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.watch import HUGE_REWARD, TypesOnly, Watch

# Types that need no conversion.
NUMBERS = frozenset({float, int, np.float64, np.float32})
FLAGS = frozenset({bool, np.bool_})


class EnvCheck:
    """Refuses what NumPy would turn into something else when it is written to the arrays of a ``VecEnv``.

    Whether observations are finite is not checked here: that takes less time for those of all environments at once.

    :param space: the observation space
    :param env_index: index of the environment
    :param watch: raises the errors
    """

    def __init__(self, space: spaces.Space, env_index: int, watch: Watch):
        self._env_index = env_index
        self._watch = watch
        self._observation = observation_check(space, watch)
        self._shape, self._dtype = space.shape, space.dtype

    def step(self, returned: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Convert what ``env.step`` returned to forms that NumPy writes unchanged.

        :raises EnvOutputError: if something has a wrong type or shape
        :raises NonFiniteError: if the reward is not finite
        """
        # This runs at every step: the types that nearly all environments return are recognised without a call.
        if type(returned) is not tuple or len(returned) != 5:
            returned = self._values(returned, "step", "(observation, reward, terminated, truncated, info)", 5)
        observation, reward, terminated, truncated, info = returned
        array = type(observation) is np.ndarray
        if not (array and observation.dtype is self._dtype and observation.shape == self._shape):
            observation = self._observation.fitted(observation, "observation", self._env_index)
        if type(reward) not in NUMBERS or not -HUGE_REWARD < reward < HUGE_REWARD:
            reward = self._number(reward)
        if type(terminated) not in FLAGS:
            terminated = self._flag("terminated", terminated)
        if type(truncated) not in FLAGS:
            truncated = self._flag("truncated", truncated)
        if not isinstance(info, dict):
            self._watch.refuse("info", repr(info), "a dict", self._env_index)
        return observation, reward, terminated, truncated, info

    def reset(self, returned: object) -> tuple[Any, dict[str, Any]]:
        """Convert what ``env.reset`` returned; see :meth:`step`."""
        observation, info = self._values(returned, "reset", "(observation, info)", 2)
        if not isinstance(info, dict):
            self._watch.refuse("info", repr(info), "a dict", self._env_index)
        return self._observation.fitted(observation, "observation", self._env_index), info

    def terminal(self, observation: object) -> None:
        """Check the last observation of an episode.

        :raises EnvOutputError: if it is not in the space
        :raises NonFiniteError: if a number in it is not finite
        """
        fitted = self._observation.fitted(observation, "terminal observation", self._env_index)
        self._observation.check_numbers(fitted, "terminal observation", self._env_index)

    def _values(self, returned: object, method: str, allowed: str, count: int) -> tuple[Any, ...] | list[Any]:
        if isinstance(returned, (tuple, list)) and len(returned) == count:
            return returned
        self._watch.refuse(f"result of {method}()", repr(returned), allowed, self._env_index)

    def _number(self, reward: object) -> float:
        number = _scalar(reward)
        if not isinstance(number, Real):
            self._watch.refuse("reward", repr(reward), "a real number", self._env_index)
        self._watch.note_reward(float(number), self._env_index)
        return float(number)

    def _flag(self, name: str, value: object) -> bool:
        flag = _scalar(value)
        if isinstance(flag, float) or not isinstance(flag, Real) or flag not in (0, 1):
            self._watch.refuse(name, repr(value), "True or False", self._env_index)
        return bool(flag)


def check_outputs(env: gym.Env, env_index: int) -> None:
    """Make an environment in a worker process check what it returns.

    Whether numbers are finite is checked in the process of the model, which knows the step.

    :param env: the environment, whose ``step`` and ``reset`` are replaced
    :param env_index: its index
    """
    check = EnvCheck(env.observation_space, env_index, TypesOnly(lambda: None))
    step, reset = env.step, env.reset
    env.step = lambda action: check.step(step(action))  # type: ignore[method-assign]
    env.reset = lambda **arguments: check.reset(reset(**arguments))  # type: ignore[method-assign]


def _scalar(value: object) -> object:
    """A Python number for a scalar of NumPy and an array or a tensor without dimensions; else the value itself."""
    if isinstance(value, str | bytes) or getattr(value, "shape", None) != ():
        return value
    return np.asarray(value).item()
