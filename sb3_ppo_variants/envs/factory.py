"""Creates gymnasium's own vector environments from an id."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.arguments.rules import check_arguments
from sb3_ppo_variants.envs.adapter import GymnasiumVecEnv
from sb3_ppo_variants.envs.ale import DEFAULTS, check_frame_skip
from sb3_ppo_variants.envs.making import ARGUMENTS, is_atari, seed_and_monitor, spec_of
from sb3_ppo_variants.errors import ArgumentError

CLASSES: dict[str, Callable[..., VectorEnv]] = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}


def make_gymnasium_vec_env(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[[gym.Env], gym.Env] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vectorization_mode: str = "sync",
    vec_env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
) -> VecEnv:
    """Create environments as SB3's ``make_vec_env`` does, but in one of gymnasium's vector environments.

    :param env_id: id of the environment or, with ``"sync"`` and ``"async"``, a function that creates it
    :param n_envs: number of environments, >= 1
    :param seed: seed for the first reset
    :param start_index: index of the first environment in the names of monitor files
    :param monitor_dir: folder for monitor files; ``None`` writes none. In either case, infos contain episode statistics
    :param wrapper_class: wrapper around each environment; not with ``"vector_entry_point"``
    :param env_kwargs: arguments of the environment
    :param vectorization_mode: ``"sync"`` steps the environments one after the other in this process, ``"async"`` steps
        each in its own process, and ``"vector_entry_point"`` uses the vector environment registered for the id
    :param vec_env_kwargs: arguments of ``SyncVectorEnv`` or ``AsyncVectorEnv``; not with ``"vector_entry_point"``
    :param monitor_kwargs: arguments of ``Monitor``, or of ``VecMonitor`` with ``"vector_entry_point"``
    :param wrapper_kwargs: arguments of the wrapper
    :raises ArgumentError: if a value is not allowed, or an Atari game and its ``AtariWrapper`` would both skip frames
    :raises gymnasium.error.Error: if there is no such id, or no vector environment for it
    """
    check_arguments({"n_envs": n_envs, "seed": seed, "vectorization_mode": vectorization_mode}, ARGUMENTS)
    if wrapper_class is AtariWrapper and isinstance(env_id, str):
        _check_game(env_id, wrapper_kwargs or {}, env_kwargs)
    if vectorization_mode not in CLASSES:
        _check_native(wrapper_class=wrapper_class, wrapper_kwargs=wrapper_kwargs, vec_env_kwargs=vec_env_kwargs)
        return seed_and_monitor(_native(env_id, n_envs, env_kwargs), seed, monitor_dir, monitor_kwargs, start_index)
    if wrapper_kwargs and wrapper_class is None:
        raise ArgumentError(f"wrapper_kwargs={wrapper_kwargs} are arguments of wrapper_class, which is None")
    wrap = partial(wrapper_class, **(wrapper_kwargs or {})) if wrapper_class else None
    make: Any = partial(_vectorized, CLASSES[vectorization_mode], **(vec_env_kwargs or {}))
    return make_vec_env(env_id, n_envs, seed, start_index, monitor_dir, wrap, env_kwargs, make, None, monitor_kwargs)


def _check_game(env_id: str, wrapper_kwargs: dict[str, Any], env_kwargs: dict[str, Any] | None) -> None:
    with suppress(gym.error.Error, ImportError):  # gym.make will report what is wrong with the id.
        if is_atari(spec_of(env_id)):
            check_frame_skip(env_id, wrapper_kwargs.get("frame_skip", DEFAULTS["frame_skip"]), env_kwargs)


def _check_native(**arguments: object) -> None:
    for name, value in arguments.items():
        if value:
            raise ArgumentError(f"{name}={value!r} cannot be used with vectorization_mode='vector_entry_point'")


def _native(env_id: str | Callable[..., gym.Env], n_envs: int, env_kwargs: dict[str, Any] | None) -> GymnasiumVecEnv:
    if not isinstance(env_id, str):
        raise ArgumentError(f"env_id={env_id!r} must be an id with vectorization_mode='vector_entry_point'")
    if is_atari(spec_of(env_id)):
        # ALE would clip rewards before the episode statistics see them.
        raise ArgumentError(f"env_id={env_id!r} is an Atari game: use make_ale_vec_env")
    return GymnasiumVecEnv(gym.make_vec(env_id, n_envs, "vector_entry_point", **(env_kwargs or {})))


def _vectorized(make: Callable[..., VectorEnv], env_fns: list[Callable[[], gym.Env]], **kwargs: Any) -> GymnasiumVecEnv:
    # In SAME_STEP mode, a reset needs no extra message to the workers.
    return GymnasiumVecEnv(make(env_fns, **{"autoreset_mode": AutoresetMode.SAME_STEP, **kwargs}))
