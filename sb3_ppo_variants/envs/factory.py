"""gymnasium's own vector environments from an id."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import VectorizeMode
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.arguments.rules import COUNT, RULES
from sb3_ppo_variants.envs.adapter import GymnasiumVecEnv
from sb3_ppo_variants.envs.ale import DEFAULTS, check_frame_skip
from sb3_ppo_variants.envs.ids import is_atari, spec_of
from sb3_ppo_variants.envs.monitor import monitored
from sb3_ppo_variants.errors import ArgumentError, refuse

CLASSES: dict[str, Callable[..., VectorEnv]] = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}
MODES = [mode.value for mode in VectorizeMode]


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
    """Do what SB3's ``make_vec_env`` does, over a vector environment of gymnasium.

    :param env_id: id of the environment, or a function that makes one; an id for ``"vector_entry_point"``
    :param n_envs: number of environments, >= 1
    :param seed: seed for the first reset
    :param start_index: number of the first environment, in the names of monitor files
    :param monitor_dir: folder for monitor files; ``None`` writes none. Infos have episode statistics in either case
    :param wrapper_class: wrapper around each environment; not with ``"vector_entry_point"``
    :param env_kwargs: arguments of the environment
    :param vectorization_mode: ``"sync"`` steps the environments one after the other in this process, ``"async"`` each
        in a process of its own, and ``"vector_entry_point"`` takes the vector environment registered for the id
    :param vec_env_kwargs: arguments of ``SyncVectorEnv`` or ``AsyncVectorEnv``; not with ``"vector_entry_point"``
    :param monitor_kwargs: arguments of ``Monitor``, or of ``VecMonitor`` with ``"vector_entry_point"``
    :param wrapper_kwargs: arguments of the wrapper
    :raises ArgumentError: if an argument has a value that is not allowed, or an Atari game and SB3's ``AtariWrapper``
        would both skip frames
    :raises gymnasium.error.Error: if there is no such id, or no vector environment for it
    """
    COUNT.check("n_envs", n_envs)
    RULES["seed"].check("seed", seed)
    if vectorization_mode not in MODES:
        refuse("vectorization_mode", vectorization_mode, " or ".join(map(repr, MODES)))
    if wrapper_class is AtariWrapper and isinstance(env_id, str) and _has_game(env_id):
        check_frame_skip(env_id, (wrapper_kwargs or {}).get("frame_skip", DEFAULTS["frame_skip"]), env_kwargs)
    if vectorization_mode in CLASSES:
        return make_vec_env(
            env_id,
            n_envs,
            seed,
            start_index,
            monitor_dir,
            wrapper_class,
            env_kwargs,
            vec_env_cls=partial(_vectorized, CLASSES[vectorization_mode]),  # type: ignore[arg-type]
            vec_env_kwargs=vec_env_kwargs,
            monitor_kwargs=monitor_kwargs,
            wrapper_kwargs=wrapper_kwargs,
        )
    _check_native(wrapper_class=wrapper_class, wrapper_kwargs=wrapper_kwargs, vec_env_kwargs=vec_env_kwargs)
    venv = _native(env_id, n_envs, env_kwargs or {})
    venv.seed(seed)
    return monitored(venv, monitor_dir, start_index, monitor_kwargs)


def _has_game(env_id: str) -> bool:
    try:
        return is_atari(spec_of(env_id))
    except (gym.error.Error, ImportError):
        return False  # gym.make says what is wrong with the id.


def _check_native(**arguments: object) -> None:
    for name, value in arguments.items():
        if value:
            raise ArgumentError(f"{name}={value!r} cannot be used with vectorization_mode='vector_entry_point'")


def _native(env_id: str | Callable[..., gym.Env], n_envs: int, env_kwargs: dict[str, Any]) -> GymnasiumVecEnv:
    if not isinstance(env_id, str):
        raise ArgumentError(f"env_id={env_id!r} must be an id with vectorization_mode='vector_entry_point'")
    if is_atari(spec_of(env_id)):
        # ALE would clip rewards before the episode statistics see them.
        raise ArgumentError(f"env_id={env_id!r} is an Atari game: use make_ale_vec_env")
    return GymnasiumVecEnv(gym.make_vec(env_id, n_envs, "vector_entry_point", **env_kwargs))


def _vectorized(make: Callable[..., VectorEnv], env_fns: list[Callable[[], gym.Env]], **kwargs: Any) -> GymnasiumVecEnv:
    # In this mode a reset costs no extra message to the workers.
    return GymnasiumVecEnv(make(env_fns, **{"autoreset_mode": AutoresetMode.SAME_STEP, **kwargs}))
