"""Measure how fast environments step in workers and threads, and estimate from the parts how fast on more cores."""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from scipy.optimize import nnls
from stable_baselines3.common.env_util import make_vec_env

from benchmarks import stepping
from benchmarks.measuring import (
    Count,
    add_options,
    circumstances,
    doubled_up_to,
    make_folders,
    quartiles,
    reported,
    seconds_to_step,
)
from sb3_ppo_variants.envs import SafeSubprocVecEnv, make_mujoco_vec_env
from sb3_ppo_variants.envs.cores import count_cores

MANY = (4, 8, 16, 64)
# The run in this process, in one thread, that the others are compared with.
ALONE = "1 process"
# Numbers of environments whose steps are empty, for what workers cost.
IDLE = (8, 32)
MODEL = """The model: a step of n environments in w workers takes a + b w + s n + (k + p) n / w, with n / w rounded up:
a message and its answer take a + b w, the main process does s for each environment, and a worker k around the p of the
environment itself. a, b, s and k are fitted to environments whose steps are empty, and p is measured in one process. In
MuJoCo's threads, only the simulation is divided; its share of a step is measured in one thread. So the speeds measured
in workers and in two threads are not fitted, but check the model. It leaves out that cores share their memory and their
clock, that whoever waits waits for the slowest, and what waking up threads costs."""


class Busy(gym.Env):
    """Computes for so many seconds in each step, and tells nothing.

    :param seconds: seconds of the processor's time
    """

    observation_space = spaces.Box(-1, 1, (24,), np.float32)
    action_space = spaces.Box(-1, 1, (4,), np.float32)

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._observation = np.zeros(24, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, which never ends."""
        super().reset(seed=seed)
        return self._observation.copy(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Compute."""
        if self._seconds:
            end = time.thread_time() + self._seconds
            while time.thread_time() < end:
                pass
        return self._observation.copy(), 0.0, False, False, {}


class Workload(NamedTuple):
    """What is stepped: in MuJoCo's threads, or else in workers."""

    make_env: Any
    """An id for threads, or a function that creates a single environment."""
    n_envs: int

    @property
    def in_threads(self) -> bool:
        """Whether it is stepped in threads."""
        return isinstance(self.make_env, str)


WORKLOADS = {
    "cartpole": Workload(partial(gym.make, "CartPole-v1"), 8),
    "lunarlander": Workload(partial(gym.make, "LunarLander-v3"), 16),
    "bipedalwalker": Workload(partial(gym.make, "BipedalWalker-v3"), 32),
    "millisecond": Workload(partial(Busy, 1e-3), 16),
    "halfcheetah": Workload("HalfCheetah-v5", 8),
    "humanoid": Workload("Humanoid-v5", 8),
}


class Parts(NamedTuple):
    """What the seconds of a step are made of."""

    serial: float
    """In the main process."""
    per_worker: float
    divided: float
    """For each environment of a worker or thread."""

    def seconds(self, n_envs: int, cores: int) -> float:
        """Return the seconds of a step on so many cores."""
        workers = min(cores, n_envs)
        return self.serial + self.per_worker * workers + self.divided * -(-n_envs // workers)


def measure(workload: Workload, most: int, n_steps: int, pairs: int) -> dict[str, list[float]]:
    """Measure the seconds of ``n_steps`` steps in this process and in 1, 2, 4, ... workers or threads, in turn.

    In threads, ``"simulated"`` has the share of a step that is divided among them.
    """
    counts = doubled_up_to(min(most, workload.n_envs))
    if not workload.in_threads:
        make = partial(make_vec_env, workload.make_env, seed=0)
        workers = partial(make, vec_env_cls=SafeSubprocVecEnv)
        pools = {str(n): partial(workers, vec_env_kwargs={"n_workers": n}) for n in counts}
        return stepping.measure({ALONE: make, **pools}, workload.n_envs, n_steps, pairs)
    threads = partial(make_mujoco_vec_env, workload.make_env, seed=0)
    several = {str(n): partial(threads, n_threads=n) for n in counts if n > 1}
    seconds = stepping.measure({ALONE: partial(threads, n_threads=1), **several}, workload.n_envs, n_steps, pairs)
    return {**seconds, "simulated": [_share_of_simulation(workload, n_steps) for _ in range(pairs)]}


class Timed:
    """MuJoCo's batch, with the seconds of its steps."""

    def __init__(self, batch: Any):
        self._batch = batch
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def step(self, **arguments: object) -> None:
        """Step the batch."""
        start = time.perf_counter()
        self._batch.step(**arguments)
        self.seconds += time.perf_counter() - start


def _share_of_simulation(workload: Workload, n_steps: int) -> float:
    venv: Any = make_mujoco_vec_env(workload.make_env, workload.n_envs, seed=0, n_threads=1)
    venv.reset()
    venv.simulations.batch = timed = Timed(venv.simulations.batch)
    seconds = seconds_to_step(venv, n_steps)
    venv.close()
    return timed.seconds / seconds


def parts_of(name: str, measured: Mapping[str, Any]) -> Parts:
    """Return the parts of the step of a workload, from the medians of what was measured."""
    workload, seconds = WORKLOADS[name], measured["runs"][name]
    alone, n = float(np.median(seconds[ALONE])) / measured["steps"], workload.n_envs
    if workload.in_threads:
        divided = float(np.median(seconds["simulated"])) * alone
        return Parts(alone - divided, 0.0, divided / n)
    latency, per_worker, per_env, in_worker = overheads(measured)
    around = np.mean([np.median(of[ALONE]) / int(size) for size, of in measured["idle"].items()]) / measured["steps"]
    return Parts(latency + per_env * n, per_worker, in_worker + max(alone / n - float(around), 0.0))


def overheads(measured: Mapping[str, Any]) -> Sequence[float]:
    """Fit a, b, s and k of the model, in seconds and none below 0, to the steps of empty environments."""
    rows, times = [], []
    for size, of_counts in measured["idle"].items():
        for workers, seconds in of_counts.items():
            if workers != ALONE:
                n, w = int(size), int(workers)
                rows.append([1.0, w, n, -(-n // w)])
                times.append(np.median(seconds) / measured["steps"])
    return [float(each) for each in nnls(np.array(rows), np.array(times))[0]]


def speed(name: str, measured: Mapping[str, Any], cores: int) -> float:
    """Return how many times as fast as in one process the model says that steps are on so many cores."""
    alone = float(np.median(measured["runs"][name][ALONE])) / measured["steps"]
    return alone / parts_of(name, measured).seconds(WORKLOADS[name].n_envs, cores)


def measured_speeds(name: str, measured: Mapping[str, Any]) -> dict[int, np.ndarray]:
    """Return how many times as fast as in one process the steps of each run were, by the number of workers."""
    runs = measured["runs"][name]
    counts = [count for count in runs if count.isdigit()]
    return {int(count): np.array(runs[ALONE]) / np.array(runs[count]) for count in counts}


def tables(measured: Mapping[str, Any]) -> list[str]:
    """Return a table that compares the model with what was measured, and one of what it says about more cores."""
    checks = ["| environments | workers or threads | speed over 1 process | model |", "|---|---|---|---|"]
    header = f"| environments | microseconds in 1 process | {' | '.join(f'{n} cores' for n in MANY)} |"
    estimates = [header, "|---" * (2 + len(MANY)) + "|"]
    for name, seconds in measured["runs"].items():
        called = f"{name}, {WORKLOADS[name].n_envs}"
        for count, ratios in measured_speeds(name, measured).items():
            checks.append(f"| {called} | {count} | {quartiles(ratios)} | {speed(name, measured, count):.2f} |")
        speeds = " | ".join(f"{speed(name, measured, n):.1f}" for n in MANY)
        estimates.append(f"| {called} | {1e6 * np.median(seconds[ALONE]) / measured['steps']:.0f} | {speeds} |")
    return [*checks, "", *estimates]


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=7)
    parser.add_argument("--cores", action=Count, default=count_cores(), help="most workers (default: %(default)s)")
    parser.add_argument("--steps", action=Count, default=300, help="steps of a run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measured seconds")
    parser.add_argument("--report", type=Path, help="print the tables of such a file, without measuring")


def run(options: argparse.Namespace) -> int:
    """Measure, and print what was measured next to the model."""
    make_folders(options.json)
    if options.report is None:
        sizes = options.cores, options.steps, options.pairs
        idle = {str(n): measure(Workload(partial(Busy, 0.0), n), *sizes) for n in IDLE}
        runs = {name: measure(WORKLOADS[name], *sizes) for name in options.workloads}
        measured = {**circumstances(), "steps": options.steps, "idle": idle, "runs": runs}
    else:
        measured = reported(options.report, "steps", "idle", "runs")
    if options.json is not None:
        options.json.write_text(json.dumps(measured) + "\n")
    print("\n".join([*tables(measured), "", MODEL]))
    return 0
