"""Checks of the values that environments return."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NoReturn, TypeGuard

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.guards.observations import ObservationCheck, as_real_array, observation_check, shown
from sb3_ppo_variants.guards.watch import HUGE_REWARD, Watch

# Types that need no conversion.
NUMBERS = frozenset({float, int, np.float64, np.float32})
FLAGS = frozenset({bool, np.bool_})

RESULTS = {"step": "(observation, reward, terminated, truncated, info)", "reset": "(observation, info)"}


class EnvCheck:
    """Refuses values that NumPy would silently change when it writes them to the arrays of a ``VecEnv``.

    It does not check that observations are finite, because checking those of all environments at once is faster.

    :param observation: the check of observations
    :param env_index: index of the environment
    :param watch: raises the errors
    """

    def __init__(self, observation: ObservationCheck, env_index: int, watch: Watch):
        self._observation = observation
        self._env_index = env_index
        self._watch = watch

    @classmethod
    def of_each(cls, env: VecEnv, watch: Watch) -> list["EnvCheck"]:
        """Return the checks of stacked environments."""
        observation = observation_check(env.observation_space, watch)
        return [cls(observation, i, watch) for i in range(env.num_envs)]

    def step(self, returned: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Convert the values that ``env.step`` returned to forms that NumPy can write unchanged.

        :raises GuardError: if a value has a wrong type or shape, or the reward is not finite
        """
        observation, reward, terminated, truncated, info = self._values(returned, "step", 5)
        observation = self._observation.fitted(observation, "observation", self._env_index)
        if type(reward) not in NUMBERS or not -HUGE_REWARD < reward < HUGE_REWARD:
            reward = self._number(reward)
        if type(terminated) not in FLAGS:
            terminated = self._flag("terminated", terminated)
        if type(truncated) not in FLAGS:
            truncated = self._flag("truncated", truncated)
        if not isinstance(info, dict):
            self._refuse("info", info, "a dict")
        return observation, reward, terminated, truncated, info

    def reset(self, returned: object) -> tuple[Any, dict[str, Any]]:
        """Convert the values that ``env.reset`` returned; see :meth:`step`."""
        if type(returned) is not tuple or len(returned) != 2:
            returned = self._values(returned, "reset", 2)
        observation, info = returned
        if not isinstance(info, dict):
            self._refuse("info", info, "a dict")
        return self._observation.fitted(observation, "observation", self._env_index), info

    def below(self, space: spaces.Space) -> "EnvCheck":
        """Return the check of the same environment below a wrapper."""
        return EnvCheck(observation_check(space, self._watch), self._env_index, self._watch)

    def parts(self, found: Mapping[str, Any]) -> None:
        """Check some of the values that ``env.step`` returned, by name; see :meth:`step`."""
        if "observation" in found:
            self._observation.fitted(found["observation"], "observation", self._env_index)
        if "reward" in found:
            self._number(found["reward"])
        for name in ("terminated", "truncated", "done"):
            self._flag(name, found.get(name, False))
        if not isinstance(found.get("info", {}), dict):
            self._refuse("info", found["info"], "a dict")

    def refuse_count(self, method: str, found: str) -> NoReturn:
        """:raises EnvOutputError: always, for a ``step`` or ``reset`` that returned a wrong number of values"""
        self._watch.refuse(f"result of {method}()", found, RESULTS[method], self._env_index)

    def terminal(self, observation: object) -> Any:
        """Check the last observation of an episode, and convert it as :meth:`step` does.

        :raises GuardError: if it is not in the space, or not finite
        """
        fitted = self._observation.fitted(observation, "terminal observation", self._env_index)
        self._observation.check_numbers(fitted, "terminal observation", self._env_index)
        return fitted

    def _values(self, returned: object, method: str, count: int) -> tuple[Any, ...] | list[Any]:
        if isinstance(returned, (tuple, list)) and len(returned) == count:
            return returned
        self.refuse_count(method, shown(returned))

    def _number(self, reward: object) -> float:
        number = _scalar(reward)
        if not _is_real(number):
            self._refuse("reward", reward, "a real number")
        try:
            value = float(number)
        except OverflowError:
            self._refuse("reward", reward, "a number that a float can hold")
        self._watch.note_reward(value, self._env_index)
        return value

    def _flag(self, name: str, value: object) -> bool:
        flag = _scalar(value)
        if not _is_real(flag) or flag not in (0, 1):
            self._refuse(name, value, "True or False")
        return bool(flag)

    def _refuse(self, quantity: str, found: object, allowed: str) -> NoReturn:
        self._watch.refuse(quantity, shown(found), allowed, self._env_index)


def check_episode(info: Mapping[str, Any], env_index: int, watch: Watch) -> None:
    """Check the statistics in the info of the last step of an episode, whose means SB3 logs.

    :raises EnvOutputError: if one is not a number, naming its key
    """
    episode = info.get("episode")
    statistics = {'info["is_success"]': info.get("is_success")} if info.get("is_success") is not None else {}
    if episode is not None:
        if not isinstance(episode, Mapping) or not {"r", "l"} <= episode.keys():
            watch.refuse('info["episode"]', shown(episode), "a dict with the keys 'r' and 'l'", env_index)
        statistics |= {f'info["episode"][{key!r}]': episode[key] for key in ("r", "l")}
    for name, value in statistics.items():
        if as_real_array(value) is None:
            watch.refuse(name, shown(value), "a number", env_index)


class StackCheck:
    """Refuses invalid rewards, dones and infos of all environments together; observations are checked elsewhere."""

    def __init__(self, checks: Sequence[EnvCheck], watch: Watch):
        self._checks = checks
        self._watch = watch

    def check(self, rewards: object, dones: object, infos: Any) -> list[int]:
        """Check the values that ``step_wait`` returned, and convert the last observations of episodes that ended.

        :return: the indices of the environments in which an episode ended
        :raises GuardError: if a value has a wrong type or shape, or is not finite
        """
        self._check_rewards(rewards)
        ended = self._ended(dones)
        self._check_infos(infos, may_be_missing=not ended)
        for i in ended:
            terminal = infos[i].get("terminal_observation")
            if terminal is not None:
                infos[i]["terminal_observation"] = self._checks[i].terminal(terminal)
        return ended

    def compare_ends(self, ended: Iterable[int], observations: Any, infos: Sequence[dict[str, Any]]) -> None:
        """Warn if the last observation of an episode that a time limit ended equals the first one of the next.

        SB3's workers, for example, send the last observation after the reset. If an environment returns the same array
        at each step, the reset has then overwritten it, and the value of another state ends the return.

        :param ended: the indices of the environments in which an episode ended
        :param observations: the first observations of the new episodes, in the rows of these environments
        """
        for i in ended:
            if infos[i].get("TimeLimit.truncated") and _is_row(infos[i].get("terminal_observation"), observations, i):
                self._watch.note_lost_end(i)

    def _check_rewards(self, rewards: object) -> None:
        if not self._is_array(rewards, "biuf"):
            self._watch.refuse("reward", shown(rewards), "an array with a real number for each environment", None)
        # Both comparisons are false for NaN.
        if not (rewards.min() > -HUGE_REWARD and rewards.max() < HUGE_REWARD):
            for i, reward in enumerate(rewards.tolist()):
                self._watch.note_reward(reward, i)

    def _ended(self, dones: object) -> list[int]:
        """Return the indices of the environments in which an episode ended."""
        if not self._is_array(dones, "biuf") or (dones.dtype.kind != "b" and not np.isin(dones, (0, 1)).all()):
            self._watch.refuse("done", shown(dones), "an array with True or False for each environment", None)
        return [i for i, done in enumerate(dones.tolist()) if done]

    def _check_infos(self, infos: Any, may_be_missing: bool) -> None:
        of_all = len(infos) == len(self._checks) or (len(infos) == 0 and may_be_missing)
        # Comparing types is faster than isinstance(), and there may be many environments.
        right = {*map(type, infos)} == {dict} or all(isinstance(info, dict) for info in infos)
        if not (of_all and right):
            self._watch.refuse("info", shown(infos), "a list with a dict for each environment", None)

    def _is_array(self, value: object, kinds: str) -> TypeGuard[np.ndarray]:
        return isinstance(value, np.ndarray) and value.shape == (len(self._checks),) and value.dtype.kind in kinds


def _is_row(observation: Any, stacked: Any, i: int) -> bool:
    """Return whether an observation equals a row. Single numbers do not count, because they are often the same."""
    if isinstance(observation, dict) and isinstance(stacked, dict):
        return all(_is_row(observation[key], stacked[key], i) for key in observation)
    return isinstance(observation, np.ndarray) and observation.size > 1 and np.array_equal(observation, stacked[i])


def _is_real(value: object) -> TypeGuard[Real]:
    # NumPy's timedelta64 is a subclass of its integers.
    return isinstance(value, Real) and not isinstance(value, np.timedelta64)


def _scalar(value: object) -> object:
    """Return a Python number for a NumPy scalar, or an array or tensor without dimensions; else the value itself."""
    if isinstance(value, str | bytes | np.timedelta64) or getattr(value, "shape", None) != ():
        return value
    return np.asarray(value).item()
