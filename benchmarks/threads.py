"""Measure how fast updates are in several threads, and estimate from that how fast they are in many more."""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.measuring import (
    Count,
    add_options,
    circumstances,
    in_turn,
    make_folders,
    quartiles,
    reported,
    since,
)
from benchmarks.workloads import WORKLOADS as TRAINED
from benchmarks.workloads import Workload
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.envs.cores import count_cores


class Updated(NamedTuple):
    """What is trained, and how many threads its minibatches can be divided among."""

    workload: Workload
    most: int


def _halfcheetah(batch_size: int) -> Workload:
    settings = {"n_steps": 256, "batch_size": batch_size, "policy_kwargs": {"net_arch": [256, 256]}}
    return Workload(partial(make_vec_env, "HalfCheetah-v5", 8), "MlpPolicy", settings)


# Blocks of 128 states, each for two networks, and blocks of 32 images.
WORKLOADS = {
    "halfcheetah-256": Updated(_halfcheetah(256), 4),
    "halfcheetah-1024": Updated(_halfcheetah(1024), 16),
    "breakout": Updated(TRAINED["breakout"], 8),
}
MANY = (4, 8, 16, 64)
MODEL = """The model: a share of the update stays in one thread, and all threads divide the rest evenly (Amdahl's law).
The share is fitted to the measured times. The model leaves out that cores share their memory and their clock, and that
threads wait for each other, except as far as the measured times contain it. There are at most as many threads as a
minibatch has parts."""


def measure(workload: Workload, counts: Sequence[int], pairs: int) -> dict[str, list[float]]:
    """Measure the seconds of an update with the same rollout in so many threads, in turn."""
    model: Any = workload.model(partial(PPOClip, device="cpu", fast=True))
    model.learn(model.n_steps * model.n_envs)

    def update(count: int) -> float:
        th.set_num_threads(count)
        start = time.perf_counter()
        model.train()
        return since(start)

    with _same_threads_after():
        seconds = in_turn({str(count): partial(update, count) for count in counts}, pairs)
    model.env.close()
    return seconds


@contextmanager
def _same_threads_after() -> Iterator[None]:
    before = th.get_num_threads()
    try:
        yield
    finally:
        th.set_num_threads(before)


def serial_share(seconds: Mapping[str, Sequence[float]]) -> float:
    """Fit the share s of t(n) / t(1) = s + (1 - s) / n to the median times, by least squares.

    :param seconds: the times by number of threads
    """
    counts = np.array([int(count) for count in seconds if int(count) > 1])
    alone = np.median(seconds["1"])
    ratios = np.array([np.median(seconds[str(count)]) / alone for count in counts])
    slopes = 1 - 1 / counts
    return float(np.clip(((ratios - 1 / counts) * slopes).sum() / (slopes**2).sum(), 0, 1))


def predict(share: float, count: int) -> float:
    """Return how many times as fast as in one thread an update is, by Amdahl's law."""
    return 1 / (share + (1 - share) / count)


def table(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """Return a table of the measured times, and of the speed over one thread."""
    lines = ["| workload | threads | milliseconds of an update | speed over 1 thread |", "|---|---|---|---|"]
    for name, seconds in runs.items():
        alone = np.array(seconds["1"])
        for count, values in seconds.items():
            each = np.array(values)
            lines.append(f"| {name} | {count} | {quartiles(each * 1e3, '.1f')} | {quartiles(alone / each)} |")
    return lines


def model_table(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """Return a table of the serial shares, and of the speeds that the model predicts."""
    lines = [f"| workload | serial share | {' | '.join(f'{n} cores' for n in MANY)} |", "|---" * (2 + len(MANY)) + "|"]
    for name, seconds in runs.items():
        if len(seconds) > 1:
            share = serial_share(seconds)
            speeds = (f"{predict(share, min(n, WORKLOADS[name].most)):.1f}" for n in MANY)
            lines.append(f"| {name} | {share:.1%} | {' | '.join(speeds)} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=7)
    parser.add_argument("--threads", action=Count, default=count_cores(), help="most threads (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measured seconds")
    parser.add_argument("--report", type=Path, help="print the tables of such a file, without measuring")


def run(options: argparse.Namespace) -> int:
    """Measure and print the table of the measured times and that of the model."""
    make_folders(options.json)
    if options.report is None:
        counts = range(1, options.threads + 1)
        runs = {name: measure(WORKLOADS[name].workload, counts, options.pairs) for name in options.workloads}
        measured = {**circumstances("mujoco", "ale_py"), "runs": runs}
    else:
        measured = reported(options.report, "runs")
    print("\n".join([*table(measured["runs"]), "", *model_table(measured["runs"]), "", MODEL]))
    if options.json is not None:
        options.json.write_text(json.dumps(measured) + "\n")
    return 0
