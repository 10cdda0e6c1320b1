"""What a vectorised environment need not have.

SB3 only trains: it calls ``reset`` and ``step``, and reads the spaces and ``num_envs``. Adapters of other libraries
(PettingZoo's SuperSuit, EnvPool, Isaac Lab, procgen) often have little more. They lack methods of ``VecEnv``, raise
``NotImplementedError`` in them, skip its constructor, or derive from ``VecEnvWrapper`` around something that is not a
``VecEnv``. Code that wants more than SB3 does asks here.
"""

from contextlib import suppress

import gymnasium as gym
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.interrupts import HELD

ABSENT = (AttributeError, NotImplementedError)
PACKAGE = __name__.partition(".")[0]


def has_attr(env: VecEnv, name: str) -> bool:
    """Whether all single environments have an attribute; False if the environment gives no access to them."""
    with suppress(*ABSENT), HELD:  # SB3's workers would give an answer that is interrupted to the next question.
        # Some answer None for every name.
        return bool(env.has_attr(name)) and not env.has_attr("an attribute that no environment has")
    return False


def offers(env: VecEnv, name: str) -> bool:
    """Whether all single environments have an attribute, as far as asking them can do no harm.

    Those in this process may raise anything. A worker of another library may end if it does not know the question.
    """
    with suppress(Exception):
        if inside := single_envs(env):
            return all(single.has_wrapper_attr(name) for single in inside)
        cls = type(env.unwrapped)
        return (cls is SubprocVecEnv or cls.__module__.startswith(f"{PACKAGE}.")) and has_attr(env, name)
    return False


def inner(env: VecEnv) -> VecEnv | None:
    """Find the vectorised environment inside a wrapper; ``None`` if there is none."""
    below = env.venv if isinstance(env, VecEnvWrapper) else None
    return below if isinstance(below, VecEnv) else None


def single_envs(env: VecEnv) -> list[gym.Env]:
    """Find the single environments, if they are in this process."""
    inside = _below_wrappers(env, "envs")
    return inside if isinstance(inside, list) and all(isinstance(single, gym.Env) for single in inside) else []


def pending_seeds(env: VecEnv) -> list[int]:
    """Return the seeds for the next reset, if the environment has any."""
    seeds = _below_wrappers(env, "_seeds")
    return [seed for seed in seeds if seed is not None] if isinstance(seeds, list) else []


def seed(env: VecEnv, number: int) -> None:
    """Seed the next reset of all environments.

    :raises ArgumentError: if they cannot be seeded, naming their class
    """
    try:
        env.seed(number)
    except ABSENT as error:
        below = env
        while (wrapped := inner(below)) is not None:
            below = wrapped
        raise ArgumentError(
            f"{below.__class__.__name__} cannot be seeded ({type(error).__name__}: {error}): seed the environments "
            "themselves and pass seed=None. Checkpoints of exact runs need environments with a seed method"
        ) from error


def _below_wrappers(env: VecEnv, name: str) -> object:
    with suppress(*ABSENT):
        return getattr(env.unwrapped, name)
    return None
