"""Compare how fast vectorised environments step, or models train on them, with SB3's, in alternating runs."""

import argparse
import json
import time
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from benchmarks.measuring import (
    Count,
    Other,
    add_names,
    add_options,
    circumstances,
    in_turn,
    make_folders,
    quartiles,
    reported,
    seconds_to_step,
    since,
)
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.envs import (
    SafeSubprocVecEnv,
    make_ale_vec_env,
    make_envpool_vec_env,
    make_gymnasium_vec_env,
    make_mujoco_vec_env,
)
from sb3_ppo_variants.envs.cores import count_cores

MakeEnv = Callable[[int], VecEnv]
# The environments that the others are compared with.
REFERENCE = "SB3's DummyVecEnv"
# What trains in the reference beside PPOClip.
THEIRS = f"{REFERENCE}, SB3's PPO"
# What no workers could exceed: processes that step their shares of the environments, and exchange nothing.
APART = "processes without messages"
SETTINGS: dict[str, Any] = {"n_steps": 256, "batch_size": 64, "seed": 0, "device": "cpu"}
ENVPOOL = "make_envpool_vec_env"
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


IN_WORKERS = {"lunarlander": "LunarLander-v3", "bipedalwalker": "BipedalWalker-v3"}
WORKLOADS: dict[str, dict[str, MakeEnv]] = {
    "breakout": {
        REFERENCE: partial(_atari, DummyVecEnv),
        "SB3's SubprocVecEnv": partial(_atari, SubprocVecEnv),
        "make_ale_vec_env": partial(make_ale_vec_env, BREAKOUT, seed=0),
    },
    "halfcheetah": {
        REFERENCE: partial(make_vec_env, HALFCHEETAH, seed=0),
        "SB3's SubprocVecEnv": partial(make_vec_env, HALFCHEETAH, seed=0, vec_env_cls=SubprocVecEnv),
        "make_gymnasium_vec_env, sync": partial(make_gymnasium_vec_env, HALFCHEETAH, seed=0),
        "make_gymnasium_vec_env, async": partial(
            make_gymnasium_vec_env, HALFCHEETAH, seed=0, vectorization_mode="async"
        ),
        ENVPOOL: partial(make_envpool_vec_env, HALFCHEETAH, seed=0),
        **_batched(HALFCHEETAH),
    },
    "hopper": _batched("Hopper-v5"),
    "walker2d": _batched("Walker2d-v5"),
    "humanoid": _batched("Humanoid-v5"),
    **{name: _in_workers(env_id) for name, env_id in IN_WORKERS.items()},
}

# The packages that each workload needs besides EnvPool.
PACKAGES = {
    "breakout": ("ale_py",),
    "halfcheetah": ("mujoco",),
    "hopper": ("mujoco",),
    "walker2d": ("mujoco",),
    "humanoid": ("mujoco",),
    "lunarlander": ("Box2D",),
    "bipedalwalker": ("Box2D",),
}


def measure(
    envs: dict[str, MakeEnv], n_envs: int, n_steps: int, pairs: int, train: bool = False, apart: str | None = None
) -> dict[str, list[float]]:
    """Run ``n_steps`` steps in each of the ``envs`` in turn, and return the seconds.

    :param train: train PPOClip in them, and SB3's PPO in the reference, instead of taking the same random actions
    :param apart: id of environments that as many processes as there are cores also step, without messages
    """
    venvs = {name: make(n_envs) for name, make in envs.items()}
    if train:
        models: dict[str, PPO | PPOClip] = {
            name: PPOClip("MlpPolicy", venv, **SETTINGS) for name, venv in venvs.items()
        }
        models[THEIRS] = PPO("MlpPolicy", envs[REFERENCE](n_envs), **SETTINGS)
        seconds = in_turn({name: partial(_seconds_to_learn, model, n_steps) for name, model in models.items()}, pairs)
    else:
        others = [] if apart is None else _processes(apart, n_envs, n_steps)
        for venv in venvs.values():
            venv.reset()
        runs = {name: partial(seconds_to_step, venv, n_steps) for name, venv in venvs.items()}
        seconds = in_turn(runs | ({APART: partial(_seconds_apart, others)} if others else {}), pairs)
        for other in others:
            other.end()
    for venv in venvs.values():
        venv.close()
    return seconds


def _processes(env_id: str, n_envs: int, n_steps: int) -> list[Other[float]]:
    """Return a process per core, each with the environments that a worker of a ``SafeSubprocVecEnv`` has."""
    count = min(n_envs, count_cores())
    bounds = pairwise(n_envs * i // count for i in range(count + 1))
    return [Other(partial(_prepare, env_id, first, end, n_steps)) for first, end in bounds]


def _prepare(env_id: str, first: int, end: int, n_steps: int) -> Callable[[], float]:
    venv: Any = make_vec_env(env_id, end - first, seed=0, start_index=first, env_kwargs={"render_mode": None})
    venv.reset()

    def step(actions: np.ndarray) -> None:
        for env, action in zip(venv.envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return partial(seconds_to_step, venv, n_steps, step)


def _seconds_apart(others: list[Other[float]]) -> float:
    """Return the seconds that the slowest process takes."""
    for other in others:
        other.begin()
    return max([other.result() for other in others])


def _seconds_to_learn(model: PPO | PPOClip, n_steps: int) -> float:
    start = time.perf_counter()
    model.learn(n_steps * model.n_envs, reset_num_timesteps=False)
    return since(start)


def _without(names: Collection[str], envs: dict[str, MakeEnv]) -> dict[str, MakeEnv]:
    return {name: make for name, make in envs.items() if name not in names}


def rows(name: str, n_envs: int, n_steps: int, measured: dict[str, list[float]]) -> list[str]:
    """Return the rows of the table for one workload."""
    lines = []
    for envs, seconds in measured.items():
        ratio = quartiles(np.array(measured[REFERENCE]) / np.array(seconds))
        lines.append(f"| {name} | {envs} | {ratio} | {n_envs * n_steps / np.median(seconds):.0f} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=7)
    parser.add_argument("--n-envs", action=Count, default=8, help="number of environments (default: %(default)s)")
    parser.add_argument(
        "--steps", action=Count, default=1000, help="steps of each environment in a run (default: %(default)s)"
    )
    names = sorted({name for envs in WORKLOADS.values() for name in envs} - {REFERENCE})
    add_names(parser, "--without", names, [])
    parser.add_argument("--train", action="store_true", help="train in the environments, instead of random actions")
    parser.add_argument("--json", type=Path, help="file for the measured seconds")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without measuring")


def run(options: argparse.Namespace) -> int:
    """Measure and print a table of medians, with quartiles of the speed relative to SB3's ``DummyVecEnv``."""
    n_envs, n_steps = options.n_envs, options.steps
    make_folders(options.json)
    if options.report is None:
        left = {name: _without(options.without, WORKLOADS[name]) for name in options.workloads}
        packages = {package for name in left for package in PACKAGES[name]}
        packages |= {"envpool"} if any(ENVPOOL in envs for envs in left.values()) else set()
        for package in sorted(packages):
            import_module(package)  # Raises an error before anything is measured.
        made_with = circumstances()
        sizes = n_envs, n_steps, options.pairs, options.train
        runs = {name: measure(envs, *sizes, IN_WORKERS.get(name)) for name, envs in left.items()}
        measured = {**made_with, "n_envs": n_envs, "steps": n_steps, "trained": options.train, "runs": runs}
    else:
        measured = reported(options.report, "n_envs", "steps", "runs")
    over = f"{'PPOClip on ' if measured.get('trained') else ''}{REFERENCE}"
    print(f"| workload | environments | speed over {over} | steps/s |\n|---|---|---|---|")
    for name, seconds in measured["runs"].items():
        print("\n".join(rows(name, measured["n_envs"], measured["steps"], seconds)))
    if options.json is not None:
        options.json.write_text(json.dumps(measured) + "\n")
    return 0
