"""Helpers that the functions that create environments share."""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from sb3_ppo_variants.arguments.rules import COUNT, RULES, Rule
from sb3_ppo_variants.errors import ArgumentError

MODES = [mode.value for mode in VectorizeMode]
ARGUMENTS = {
    "n_envs": COUNT,
    "seed": RULES["seed"],
    "n_stack": COUNT,
    "vectorization_mode": Rule(" or ".join(map(repr, MODES)), lambda value: value in MODES),
}


def spec_of(env_id: str) -> EnvSpec:
    """Return the specification that is registered for an id.

    :param env_id: the id, prefixed with ``module:`` if importing that module registers it
    :raises gymnasium.error.Error: if there is no such id
    :raises ImportError: if there is no such module
    """
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module)
    return gym.spec(name)


def is_atari(spec: EnvSpec) -> bool:
    """Check whether a specification is that of an Atari game of the Arcade Learning Environment."""
    return str(spec.entry_point).startswith("ale_py")


def check_not_given(env_kwargs: Mapping[str, Any], instead: Mapping[str, str]) -> None:
    """Check that ``env_kwargs`` contains no argument that has to be set in another way.

    :param env_kwargs: arguments of the environment
    :param instead: what to use instead, for each argument that is not allowed
    :raises ArgumentError: if it contains one, saying what to use instead
    """
    for name in env_kwargs:
        if name in instead:
            raise ArgumentError(f"env_kwargs={env_kwargs} must not contain {name!r}: use {instead[name]} instead")


def seed_and_monitor(
    venv: VecEnv, seed: int | None, monitor_dir: str | None, kwargs: dict[str, Any] | None, start_index: int = 0
) -> VecMonitor:
    """Seed environments and wrap them in a ``VecMonitor``, which writes ``<start_index>.monitor.csv``."""
    venv.seed(seed)
    filename = None if monitor_dir is None else os.path.join(monitor_dir, str(start_index))
    return VecMonitor(venv, filename, **(kwargs or {}))
