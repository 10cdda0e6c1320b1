"""Steps of SB3's ``DummyVecEnv`` with the same results and fewer copies."""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.guards.copies import copied, owned
from sb3_ppo_variants.guards.finite import FiniteTest, finite_test
from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.outputs import NUMBERS, EnvCheck
from sb3_ppo_variants.guards.watch import HUGE_REWARD, Watch
from sb3_ppo_variants.guards.wrapped import blame_output

REPLACED = ("step", "step_wait", "reset", "_save_obs", "_obs_from_buf")


def can_step(env: VecEnv) -> TypeGuard[DummyVecEnv]:
    """Return whether an environment is a ``DummyVecEnv`` that steps and resets as SB3's does, without tuples."""
    if not isinstance(env, DummyVecEnv) or isinstance(env.observation_space, spaces.Tuple):
        return False
    return all(getattr(getattr(env, method), "__func__", None) is getattr(DummyVecEnv, method) for method in REPLACED)


class DummySteps:
    """The steps and resets of a ``DummyVecEnv``.

    The results are as independent of the environments as SB3's deep copies, but arrays do not need a deep copy for
    this, nor does an ``info`` of numbers, strings, arrays, and dicts of numbers and strings.

    :param env: the environment
    :param watch: raises errors for values that are not allowed; ``None`` to check nothing
    :param test: creates the test whether observations are finite
    """

    def __init__(self, env: DummyVecEnv, watch: Watch | None = None, test: FiniteTest = finite_test):
        self._env = env
        self.step_async = env.step_async
        arrays: Any = env.buf_obs
        self._rows = arrays[None] if None in arrays else _DictRows(arrays)
        space = env.observation_space
        # The type and length of observations that are vectors; no observation has a length of -1.
        self._dtype = space.dtype
        self._length = space.shape[0] if space.shape is not None and len(space.shape) == 1 else -1
        self._checks = [] if watch is None else EnvCheck.of_each(env, watch)
        self._stacked = None if watch is None else observation_check(space, watch, env.num_envs)
        self._are_finite = _test_of_all([*arrays.values()], test)

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Take a step."""
        self.step_async(actions)
        return self.step_wait()

    def step_wait(self) -> VecEnvStepReturn:
        """Step each environment, and reset it if its episode ended."""
        env, rows, checks, actions = self._env, self._rows, self._checks, self._env.actions
        rewards, dones, infos = env.buf_rews, env.buf_dones, env.buf_infos
        # Local variables, because this runs at every step and looking up others takes longer.
        array, dtype, length = np.ndarray, self._dtype, self._length
        low, high, numbers = -HUGE_REWARD, HUGE_REWARD, NUMBERS
        for i, single in enumerate(env.envs):
            try:
                returned = single.step(actions[i])
            except Exception as error:
                self._blame(error, i)
                raise
            try:
                observation, reward, terminated, truncated, info = returned
            except (TypeError, ValueError):
                self._refuse(returned, i)
                raise
            # Vectors and numbers of the usual types need no conversion. Recognising them here saves a call.
            if checks and not (
                type(observation) is array
                and observation.dtype is dtype
                and observation.ndim == 1
                and len(observation) == length
                and (type(reward) is float or type(reward) in numbers)
                and low < reward < high
                and (terminated is False or terminated is True)
                and (truncated is False or truncated is True)
                and type(info) is dict
            ):
                observation, reward, terminated, truncated, info = checks[i].step(returned)
            done = terminated or truncated
            rewards[i], dones[i], infos[i] = reward, done, info
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                if checks and not self._is_finite(observation, i):
                    checks[i].terminal(observation)
                info["terminal_observation"] = owned(observation)
                first = self._first(i)
                observation, env.reset_infos[i] = checks[i].reset(first) if checks else first
            rows[i] = observation
        if checks and not self._are_finite():
            self._name_wrong()
        return rows.copy(), rewards.copy(), dones.copy(), [copied(info) for info in infos]

    def reset(self) -> VecEnvObs:
        """Reset each environment."""
        env, checks = self._env, self._checks
        for i in range(env.num_envs):
            options: dict[str, Any] = {"options": env._options[i]} if env._options[i] else {}
            first = self._first(i, seed=env._seeds[i], **options)
            self._rows[i], env.reset_infos[i] = checks[i].reset(first) if checks else first
        env._reset_seeds()
        env._reset_options()
        if checks and not self._are_finite():
            self._name_wrong()
        return self._rows.copy()

    def _first(self, i: int, **arguments: Any) -> Any:
        try:
            return self._env.envs[i].reset(**arguments)
        except Exception as error:
            self._blame(error, i)
            raise

    def _blame(self, error: Exception, i: int) -> None:
        if self._checks:
            blame_output(error, self._checks[i])

    def _refuse(self, returned: Any, i: int) -> None:
        if self._checks:
            self._checks[i].step(returned)

    def _is_finite(self, observation: Any, i: int) -> bool:
        """Return whether an observation is certainly finite; it is written to the row of its environment."""
        if type(observation) is not np.ndarray or observation.dtype is not self._dtype:
            return False
        self._rows[i] = observation
        return self._are_finite()

    def _name_wrong(self) -> None:
        if self._stacked is not None:
            self._stacked.check_numbers(self._rows, "observation", None)


def _test_of_all(arrays: Sequence[np.ndarray], test: FiniteTest) -> Callable[[], bool]:
    """Return a function that tells whether arrays are finite; it always returns False if one contains integers."""
    if any(array.dtype.kind != "f" for array in arrays):
        return lambda: False
    tests = [*map(test, arrays)]
    return tests[0] if len(tests) == 1 else lambda: all(is_finite() for is_finite in tests)


class _DictRows(dict[str, np.ndarray]):
    """A dict of arrays in which the same row of every array is written at once."""

    def __setitem__(self, row: Any, observation: Any) -> None:
        for key, array in self.items():
            array[row] = observation[key]

    def copy(self) -> dict[str, np.ndarray]:
        return {key: array.copy() for key, array in self.items()}
