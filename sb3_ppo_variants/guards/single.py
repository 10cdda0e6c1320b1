"""Steps of SB3's ``DummyVecEnv`` with the same results, what each environment returns checked before it is copied."""

from copy import deepcopy
from typing import Any, TypeGuard

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppo_variants.guards.finite import is_finite
from sb3_ppo_variants.guards.observations import observation_check
from sb3_ppo_variants.guards.outputs import EnvCheck
from sb3_ppo_variants.guards.watch import Watch

UNCHANGEABLE = frozenset({bool, int, float, str, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})
REPLACED = ("step_wait", "reset", "_save_obs", "_obs_from_buf")


def can_step(env: VecEnv) -> TypeGuard[DummyVecEnv]:
    """Whether it is a ``DummyVecEnv`` that steps, resets and copies as SB3's."""
    return isinstance(env, DummyVecEnv) and all(
        getattr(type(env), method) is getattr(DummyVecEnv, method) and method not in vars(env) for method in REPLACED
    )


class CheckedEnvs:
    """The steps and resets of a ``DummyVecEnv``.

    It copies what it returns deeply, so that neither side sees what the other changes later. Of arrays a copy is as
    deep, and of an ``info`` that holds plain numbers too; others are copied as before.

    :param env: the vectorised environment, one that :func:`can_step`
    :param watch: names where the run is
    """

    def __init__(self, env: DummyVecEnv, watch: Watch):
        self._env = env
        self._checks = [EnvCheck(env.observation_space, i, watch) for i in range(env.num_envs)]
        self._check = observation_check(env.observation_space, watch, env.num_envs)
        arrays: Any = env.buf_obs
        self._rows = arrays[None] if None in arrays else _DictRows(arrays)
        self._floats = [array for array in arrays.values() if array.dtype.kind == "f"]
        self._only_floats = len(self._floats) == len(arrays)

    def step_wait(self) -> VecEnvStepReturn:
        """A step of each environment, and a reset where an episode ended.

        :raises GuardError: if one returns what it must not
        """
        env, rows = self._env, self._rows
        rewards, dones, infos = env.buf_rews, env.buf_dones, env.buf_infos
        for i, (single, check, action) in enumerate(zip(env.envs, self._checks, env.actions, strict=False)):
            observation, reward, terminated, truncated, info = check.step(single.step(action))
            done = terminated or truncated
            rewards[i], dones[i], infos[i] = reward, done, info
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                check.terminal(observation)
                info["terminal_observation"] = observation
                observation, env.reset_infos[i] = check.reset(single.reset())
            rows[i] = observation
        return self._observations(), rewards.copy(), dones.copy(), [copied(info) for info in infos]

    def reset(self) -> VecEnvObs:
        """A reset of each environment.

        :raises GuardError: if one returns what it must not
        """
        env = self._env
        for i, (single, check) in enumerate(zip(env.envs, self._checks, strict=True)):
            options: dict[str, Any] = {"options": env._options[i]} if env._options[i] else {}
            observation, env.reset_infos[i] = check.reset(single.reset(seed=env._seeds[i], **options))
            self._rows[i] = observation
        env._reset_seeds()
        env._reset_options()
        return self._observations()

    def _observations(self) -> VecEnvObs:
        if not (self._only_floats and all(map(is_finite, self._floats))):
            self._check.check_numbers(self._rows, "observation", None)
        return self._rows.copy()


class _DictRows(dict[str, np.ndarray]):
    """Arrays of which a row of each is written at once."""

    def __setitem__(self, row: Any, observation: Any) -> None:
        for key, array in self.items():
            array[row] = observation[key]

    def copy(self) -> dict[str, np.ndarray]:
        return {key: array.copy() for key, array in self.items()}


def copied(info: dict[str, Any]) -> dict[str, Any]:
    """A copy as independent as a deep one."""
    if type(info) is dict and UNCHANGEABLE.issuperset(map(type, info.values())):
        return info.copy()
    return deepcopy(info)
