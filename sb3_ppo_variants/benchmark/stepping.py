"""Compare how fast vectorised environments step with SB3's DummyVecEnv and SubprocVecEnv, in alternating runs."""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from sb3_ppo_variants.benchmark.throughput import circumstances, rounded
from sb3_ppo_variants.envs import make_ale_vec_env, make_envpool_vec_env, make_gymnasium_vec_env

MakeEnv = Callable[[int], VecEnv]
# The first is what the others are compared with.
REFERENCE = "SB3's DummyVecEnv"
BREAKOUT, HALFCHEETAH = "BreakoutNoFrameskip-v4", "HalfCheetah-v5"


def _breakout(**kwargs: Any) -> gym.Env:
    # Registered here, because the processes of a SubprocVecEnv begin with nothing.
    import ale_py

    gym.register_envs(ale_py)
    return gym.make(BREAKOUT, **kwargs)


def _atari(vec_env_cls: type[DummyVecEnv | SubprocVecEnv], n_envs: int) -> VecEnv:
    return VecFrameStack(make_atari_env(_breakout, n_envs, seed=0, vec_env_cls=vec_env_cls), n_stack=4)


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
        "make_envpool_vec_env": partial(make_envpool_vec_env, HALFCHEETAH, seed=0),
    },
}


def measure(envs: dict[str, MakeEnv], n_envs: int, n_steps: int, pairs: int) -> dict[str, list[float]]:
    """Step each in turn with the same random actions, ``pairs`` times, after one run each to warm up.

    :return: seconds of each run of ``n_steps`` steps of all environments
    """
    venvs = {name: make(n_envs) for name, make in envs.items()}
    space = venvs[REFERENCE].action_space
    space.seed(0)
    actions = [np.array([space.sample() for _ in range(n_envs)]) for _ in range(n_steps)]
    seconds: dict[str, list[float]] = {name: [] for name in venvs}
    for venv in venvs.values():
        venv.reset()
        _run(venv, actions)
    for _ in range(pairs):
        for name, venv in venvs.items():
            seconds[name].append(_run(venv, actions))
    for venv in venvs.values():
        venv.close()
    return seconds


def _run(venv: VecEnv, actions: list[np.ndarray]) -> float:
    start = time.perf_counter()
    for action in actions:
        venv.step(action)
    return time.perf_counter() - start


def rows(name: str, n_envs: int, n_steps: int, measured: dict[str, list[float]]) -> list[str]:
    """The lines of the table for one workload."""
    reference = np.array(measured[REFERENCE])
    lines = []
    for envs, seconds in measured.items():
        low, median, high = np.quantile(reference / np.array(seconds), [0.25, 0.5, 0.75])
        rate = n_envs * n_steps / np.median(seconds)
        lines.append(f"| {name} | {envs} | {median:.2f} ({low:.2f} to {high:.2f}) | {rate:.0f} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME", help="of %(choices)s"
    )
    parser.add_argument("--n-envs", type=int, default=8, help="environments (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="steps of each in a run (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measured seconds")
    parser.add_argument("--report", type=Path, help="measure nothing, print the table of such a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure and print a table of medians, with quartiles of the speed over that of SB3's ``DummyVecEnv``.

    :return: 0
    """
    if options.report is not None:
        _print_table(json.loads(options.report.read_text()))
        return 0
    for name, value in (("n-envs", options.n_envs), ("steps", options.steps), ("pairs", options.pairs)):
        if value < 1:
            raise SystemExit(f"--{name} {value} is not allowed; allowed: an integer >= 1")
    runs = {name: measure(WORKLOADS[name], options.n_envs, options.steps, options.pairs) for name in options.workloads}
    measured = {"n_envs": options.n_envs, "steps": options.steps, "runs": rounded(runs)}
    _print_table(measured)
    if options.json is not None:
        options.json.write_text(json.dumps(circumstances("gymnasium", "ale_py", "envpool", "mujoco") | measured) + "\n")
    return 0


def _print_table(measured: dict[str, Any]) -> None:
    print("| workload | environments | speed over SB3's DummyVecEnv | steps/s |\n|---|---|---|---|")
    for name, runs in measured["runs"].items():
        print("\n".join(rows(name, measured["n_envs"], measured["steps"], runs)))
