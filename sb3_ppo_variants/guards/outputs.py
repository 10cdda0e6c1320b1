"""What one environment may return."""

from numbers import Real
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.watch import HUGE_REWARD, TypesOnly, Watch

# What is right at first sight.
NUMBERS = frozenset({float, int, np.float64, np.float32})
FLAGS = frozenset({bool, np.bool_})


class EnvCheck:
    """Refuses what NumPy would turn into something else when it is written to the arrays of a ``VecEnv``.

    Whether observations are finite is left to who has them of all environments, and can look at them at once.

    :param space: the observation space
    :param env_index: index of the environment
    :param watch: names where the run is
    """

    def __init__(self, space: spaces.Space, env_index: int, watch: Watch):
        self._env_index = env_index
        self._watch = watch
        self._observation = observation_check(space, watch)
        self._shape, self._dtype = space.shape, space.dtype

    def step(self, returned: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """What ``env.step`` returned, in forms that NumPy writes as they are.

        :raises EnvOutputError: if something has a wrong type or shape
        :raises NonFiniteError: if the reward is not finite
        """
        # All but a few environments return what is right at first sight, and every step waits for this.
        if type(returned) is tuple and len(returned) == 5:
            observation, reward, terminated, truncated, info = returned
            if (
                type(observation) is np.ndarray
                and observation.dtype is self._dtype
                and observation.shape == self._shape
                and type(reward) in NUMBERS
                and -HUGE_REWARD < reward < HUGE_REWARD
                and type(terminated) in FLAGS
                and type(truncated) in FLAGS
                and type(info) is dict
            ):
                return returned
        return self._examined(returned)

    def _examined(self, returned: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if type(returned) is not tuple or len(returned) != 5:
            returned = self._values(returned, "step", "(observation, reward, terminated, truncated, info)", 5)
        observation, reward, terminated, truncated, info = returned
        if type(reward) not in NUMBERS or not -HUGE_REWARD < reward < HUGE_REWARD:
            reward = self._number(reward)
        if type(terminated) not in FLAGS:
            terminated = self._flag("terminated", terminated)
        if type(truncated) not in FLAGS:
            truncated = self._flag("truncated", truncated)
        if not isinstance(info, dict):
            self._watch.refuse("info", f"{info!r}; allowed: a dict", self._env_index)
        observation = self._observation.fitted(observation, "observation", self._env_index)
        return observation, reward, terminated, truncated, info

    def reset(self, returned: Any) -> tuple[Any, dict[str, Any]]:
        """What ``env.reset`` returned, as in :meth:`step`."""
        if type(returned) is not tuple or len(returned) != 2:
            returned = self._values(returned, "reset", "(observation, info)", 2)
        observation, info = returned
        if not isinstance(info, dict):
            self._watch.refuse("info", f"{info!r}; allowed: a dict", self._env_index)
        return self._observation.fitted(observation, "observation", self._env_index), info

    def terminal(self, observation: Any) -> None:
        """Check the last observation of an episode.

        :raises EnvOutputError: if it is not of the space
        :raises NonFiniteError: if a number of it is not finite
        """
        observation = self._observation.fitted(observation, "terminal observation", self._env_index)
        self._observation.check_numbers(observation, "terminal observation", self._env_index)

    def _values(self, returned: Any, method: str, allowed: str, count: int) -> Any:
        if isinstance(returned, tuple | list) and len(returned) == count:
            return returned
        self._watch.refuse(f"result of {method}()", f"{returned!r}; allowed: {allowed}", self._env_index)

    def _number(self, reward: Any) -> float:
        number = _scalar(reward)
        if not isinstance(number, Real):
            self._watch.refuse("reward", f"{reward!r}; allowed: a real number", self._env_index)
        self._watch.note_reward(float(number), self._env_index)
        return float(number)

    def _flag(self, name: str, value: Any) -> bool:
        flag = _scalar(value)
        if isinstance(flag, float) or not isinstance(flag, Real) or flag not in (0, 1):
            self._watch.refuse(name, f"{value!r}; allowed: True or False", self._env_index)
        return bool(flag)


def check_outputs(env: gym.Env, env_index: int) -> None:
    """Let an environment check what it returns itself, in a process that does not know the model.

    Whether numbers are finite is left to those who can say at which step of the model they are not.

    :param env: the environment, whose ``step`` and ``reset`` are replaced
    :param env_index: its index
    """
    check = EnvCheck(env.observation_space, env_index, TypesOnly(lambda: None))
    step, reset = env.step, env.reset
    vars(env)["step"] = lambda action: check.step(step(action))
    vars(env)["reset"] = lambda **arguments: check.reset(reset(**arguments))


def _scalar(value: Any) -> Any:
    """A Python number for what is a number or an array, or a tensor, without dimensions; else the value itself."""
    if isinstance(value, str | bytes) or getattr(value, "shape", None) != ():
        return value
    return np.asarray(value).item()
