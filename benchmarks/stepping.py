"""Compare how fast vectorised environments step, or models train on them, with SB3's, in alternating runs."""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from benchmarks.measuring import (
    add_options,
    count,
    in_turn,
    measured,
    quartiles,
    seconds_to_step,
    since,
)
from benchmarks.workloads import make_envpool
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.envs import (
    SafeSubprocVecEnv,
    make_ale_vec_env,
    make_mujoco_vec_env,
)

MakeEnv = Callable[[int], VecEnv]
# The environments that the others are compared with.
REFERENCE = "SB3's DummyVecEnv"
# What trains in the reference beside PPOClip.
THEIRS = f"{REFERENCE}, SB3's PPO"
SETTINGS: dict[str, Any] = {"n_steps": 256, "batch_size": 64, "seed": 0, "device": "cpu"}
BREAKOUT, HALFCHEETAH = "BreakoutNoFrameskip-v4", "HalfCheetah-v5"


def _breakout(**kwargs: Any) -> gym.Env:
    # Register the games here, because the processes of a SubprocVecEnv start without them.
    import ale_py

    gym.register_envs(ale_py)
    return gym.make(BREAKOUT, **kwargs)


def _atari(vec_env_cls: type[DummyVecEnv | SubprocVecEnv], n_envs: int) -> VecEnv:
    return VecFrameStack(make_atari_env(_breakout, n_envs, seed=0, vec_env_cls=vec_env_cls), n_stack=4)


def _in_workers(env_id: str) -> dict[str, MakeEnv]:
    """Return environments in this process and in workers, without the pictures that ``make_vec_env`` asks for."""
    make = partial(make_vec_env, env_id, seed=0, env_kwargs={"render_mode": None})
    return {
        REFERENCE: make,
        "SB3's SubprocVecEnv": partial(make, vec_env_cls=SubprocVecEnv),
        "SafeSubprocVecEnv": partial(make, vec_env_cls=SafeSubprocVecEnv),
    }


def _batched(env_id: str) -> dict[str, MakeEnv]:
    """Return environments in SB3's DummyVecEnv, and as a batch on one and two threads."""
    return {
        REFERENCE: partial(make_vec_env, env_id, seed=0),
        "make_mujoco_vec_env, 1 thread": partial(make_mujoco_vec_env, env_id, seed=0, n_threads=1),
        "make_mujoco_vec_env, 2 threads": partial(make_mujoco_vec_env, env_id, seed=0, n_threads=2),
    }


WORKLOADS: dict[str, dict[str, MakeEnv]] = {
    "breakout": {
        REFERENCE: partial(_atari, DummyVecEnv),
        "SB3's SubprocVecEnv": partial(_atari, SubprocVecEnv),
        "make_ale_vec_env": partial(make_ale_vec_env, BREAKOUT, seed=0),
    },
    "halfcheetah": {
        REFERENCE: partial(make_vec_env, HALFCHEETAH, seed=0),
        "SB3's SubprocVecEnv": partial(make_vec_env, HALFCHEETAH, seed=0, vec_env_cls=SubprocVecEnv),
        "EnvPool": partial(make_envpool, HALFCHEETAH),
        **_batched(HALFCHEETAH),
    },
    "hopper": _batched("Hopper-v5"),
    "walker2d": _batched("Walker2d-v5"),
    "humanoid": _batched("Humanoid-v5"),
    "lunarlander": _in_workers("LunarLander-v3"),
    "bipedalwalker": _in_workers("BipedalWalker-v3"),
}


def measure(
    envs: dict[str, MakeEnv], n_envs: int, n_steps: int, pairs: int, train: bool = False
) -> dict[str, list[float]]:
    """Run ``n_steps`` steps in each of the ``envs`` in turn, and return the seconds.

    :param train: train PPOClip in them, and SB3's PPO in the reference, instead of taking the same random actions
    """
    venvs = {name: make(n_envs) for name, make in envs.items()}
    if train:
        models: dict[str, PPO | PPOClip] = {
            name: PPOClip("MlpPolicy", venv, **SETTINGS) for name, venv in venvs.items()
        }
        models[THEIRS] = PPO("MlpPolicy", envs[REFERENCE](n_envs), **SETTINGS)
        seconds = in_turn({name: partial(_seconds_to_learn, model, n_steps) for name, model in models.items()}, pairs)
    else:
        for venv in venvs.values():
            venv.reset()
        runs = {name: partial(seconds_to_step, venv, n_steps) for name, venv in venvs.items()}
        seconds = in_turn(runs, pairs)
    for venv in venvs.values():
        venv.close()
    return seconds


def _seconds_to_learn(model: PPO | PPOClip, n_steps: int) -> float:
    start = time.perf_counter()
    model.learn(n_steps * model.n_envs, reset_num_timesteps=False)
    return since(start)


def rows(name: str, n_envs: int, n_steps: int, seconds: dict[str, list[float]]) -> list[str]:
    """Return the rows of the table for one workload."""
    lines = []
    for envs, own in seconds.items():
        ratio = quartiles(np.array(seconds[REFERENCE]) / np.array(own))
        lines.append(f"| {name} | {envs} | {ratio} | {n_envs * n_steps / np.median(own):.0f} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=7)
    parser.add_argument("--n-envs", type=count, default=8, help="number of environments (default: %(default)s)")
    parser.add_argument(
        "--steps", type=count, default=1000, help="steps of each environment in a run (default: %(default)s)"
    )
    parser.add_argument("--train", action="store_true", help="train in the environments, instead of random actions")


def run(options: argparse.Namespace) -> int:
    """Measure and print a table of medians, with quartiles of the speed relative to SB3's ``DummyVecEnv``."""
    sizes = {"n_envs": options.n_envs, "steps": options.steps, "trained": options.train}
    found = measured(
        options,
        lambda name: measure(WORKLOADS[name], options.n_envs, options.steps, options.pairs, options.train),
        keys=["n_envs", "steps"],
        **sizes,
    )
    over = f"{'PPOClip on ' if found.get('trained') else ''}{REFERENCE}"
    print(f"| workload | environments | speed over {over} | steps/s |\n|---|---|---|---|")
    for name, seconds in found["runs"].items():
        print("\n".join(rows(name, found["n_envs"], found["steps"], seconds)))
    return 0
