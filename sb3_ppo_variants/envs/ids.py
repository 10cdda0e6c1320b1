"""Ids of environments."""

from importlib import import_module

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec


def spec_of(env_id: str) -> EnvSpec:
    """The specification that is registered for an id.

    :param env_id: the id, after ``module:`` if importing the module registers it
    :raises gymnasium.error.Error: if there is no such id
    :raises ImportError: if there is no such module
    """
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module)
    return gym.spec(name)


def is_atari(spec: EnvSpec) -> bool:
    """Whether it is a game of the Arcade Learning Environment."""
    return str(spec.entry_point).startswith("ale_py")
