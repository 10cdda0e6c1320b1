"""Steps of SB3's ``DummyVecEnv`` with the same results, without deep copies of what cannot change."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs

UNCHANGEABLE = frozenset({bool, int, float, str, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})


@contextmanager
def lean_steps(env: VecEnv) -> Iterator[None]:
    """Within it a ``DummyVecEnv``, under any wrappers, takes lean steps.

    It copies what it returns deeply, so that neither side sees what the other changes later. Of arrays a copy is as
    deep, and of an ``info`` that holds plain numbers too; others are copied as before.

    :param env: any vectorised environment; others, and subclasses, are left alone
    """
    inner = env
    while isinstance(inner, VecEnvWrapper):
        inner = inner.venv
    if type(inner) is not DummyVecEnv or "step_wait" in vars(inner) or _has_objects(inner):
        yield
        return
    vars(inner)["step_wait"] = partial(_step_wait, inner)
    try:
        yield
    finally:
        del vars(inner)["step_wait"]


def _has_objects(env: DummyVecEnv) -> bool:
    return any(array.dtype.hasobject for array in env.buf_obs.values())


def _step_wait(env: DummyVecEnv) -> VecEnvStepReturn:
    for i, single in enumerate(env.envs):
        observation, reward, terminated, truncated, info = single.step(env.actions[i])
        done = terminated or truncated
        env.buf_rews[i], env.buf_dones[i], env.buf_infos[i] = reward, done, info
        info["TimeLimit.truncated"] = truncated and not terminated
        if done:
            info["terminal_observation"] = observation
            observation, env.reset_infos[i] = single.reset()
        env._save_obs(i, observation)
    observations: Any = {key: array.copy() for key, array in env.buf_obs.items()}
    infos = [_copied(info) for info in env.buf_infos]
    return dict_to_obs(env.observation_space, observations), env.buf_rews.copy(), env.buf_dones.copy(), infos


def _copied(info: dict[str, Any]) -> dict[str, Any]:
    if type(info) is dict and UNCHANGEABLE.issuperset(map(type, info.values())):
        return info.copy()
    return deepcopy(info)
