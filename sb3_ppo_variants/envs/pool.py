"""EnvPool's own implementations of many environments, which it steps in threads."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from sb3_ppo_variants.arguments.rules import check_arguments
from sb3_ppo_variants.envs.adapter import GymnasiumVecEnv
from sb3_ppo_variants.envs.making import ARGUMENTS, check_not_given, seed_and_monitor
from sb3_ppo_variants.errors import ArgumentError, installation

# EnvPool's arguments that other arguments set, and those that would change the episode statistics of Atari games.
DECIDED = {"num_envs": "n_envs", "seed": "seed", "batch_size": "n_envs", "env_seed": "seed"}
WRAPPED = {"episodic_life": "VecEpisodicLife", "reward_clip": "VecClipReward"}


class EnvPoolVecEnv(GymnasiumVecEnv):
    """EnvPool's environments. They can only be seeded when they are created, so a new seed recreates them."""

    def __init__(self, make: Callable[[int], VectorEnv]):
        self._make = make
        super().__init__(make(0))
        space = self.action_space
        if isinstance(space, spaces.Box):
            # Actions are single precision in gymnasium but double precision in EnvPool, and SB3 refuses to load a
            # model for a different space.
            self.action_space = spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32))

    def _reset_env(self, seed: int | None, options: dict[str, Any] | None) -> tuple[VecEnvObs, dict[str, Any]]:
        if seed is not None:
            self.env.close()
            self._use(self._make(seed))
        return super()._reset_env(None, options)

    def _render(self) -> Any:
        pool: Any = self.env
        return pool.render(env_ids=np.arange(self.num_envs))


def make_envpool_vec_env(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    monitor_dir: str | None = None,
    env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
) -> VecEnv:
    """Create environments as SB3's ``make_vec_env`` does, but with EnvPool.

    :param env_id: id of one of EnvPool's environments
    :param n_envs: number of environments, >= 1
    :param seed: seed of the first environment, taken modulo ``2**31 - n_envs`` and incremented for each further one
    :param monitor_dir: folder for the monitor file; ``None`` writes none. In either case, infos contain episode
        statistics
    :param env_kwargs: arguments of ``envpool.make``, such as ``num_threads`` and ``max_episode_steps``
    :param monitor_kwargs: further arguments of ``VecMonitor``
    :raises ImportError: if EnvPool is not installed
    :raises ArgumentError: if an argument has a value that is not allowed, or there is no such environment
    """
    check_arguments({"n_envs": n_envs, "seed": seed}, ARGUMENTS)
    envpool = _envpool()
    if env_id not in envpool.list_all_envs():
        raise ArgumentError(f"env_id={env_id!r} must be one of envpool.list_all_envs()")
    env_kwargs = env_kwargs or {}
    check_not_given(env_kwargs, DECIDED)
    check_not_given(env_kwargs, {name: wrapper for name, wrapper in WRAPPED.items() if env_kwargs.get(name)})
    venv = EnvPoolVecEnv(lambda seed: envpool.make(env_id, "gymnasium", num_envs=n_envs, seed=seed, **env_kwargs))
    return seed_and_monitor(venv, seed, monitor_dir, monitor_kwargs)


def _envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        hint = installation("envpool")
        raise ImportError(f"EnvPool is not installed; with Python 3.11 or newer, run: {hint}") from error
    return envpool
