"""Measure how fast updates are in several threads.

Beside them, it measures as many processes that update models of their own at the same time, in one thread each: two
cores share memory and a clock, so no threads can be expected to be faster than these.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch as th

from benchmarks.measuring import (
    add_options,
    count,
    doubled_up_to,
    in_turn,
    measured,
    quartiles,
    since,
)
from benchmarks.workloads import WORKLOADS as TRAINED
from benchmarks.workloads import Workload, with_wide_networks
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.envs.subproc import count_cores


class Updated(NamedTuple):
    """What is trained, and how many threads its minibatches can be divided among."""

    workload: Workload
    most: int


# Blocks of 128 states, each for two networks, and blocks of 32 images.
WORKLOADS = {
    "halfcheetah-256": Updated(with_wide_networks(256, batch_size=256), 4),
    "halfcheetah-1024": Updated(with_wide_networks(256, batch_size=1024), 16),
    "breakout": Updated(TRAINED["breakout"], 8),
}
# The seconds of each run, by the number of threads or processes.
Seconds: TypeAlias = Mapping[str, Sequence[float]]


def measure(name: str, counts: Sequence[int], pairs: int) -> dict[str, dict[str, list[float]]]:
    """Measure the seconds of an update of the same rollout in so many threads, and in so many processes, in turn."""
    model = _trained(name)
    # An executor of one process each, so that each updates a model of its own.
    others = [ProcessPoolExecutor(1, get_context("spawn"), _prepare, (name,)) for _ in range(max(counts) - 1)]

    def update_together(number: int) -> float:
        start = time.perf_counter()
        updates = [other.submit(_update_own) for other in others[: number - 1]]
        _update(model, 1)
        for update in updates:
            update.result()
        return since(start)

    before = th.get_num_threads()
    runs = {f"{number} threads": partial(_update, model, number) for number in counts}
    together = {f"{number} processes": partial(update_together, number) for number in counts if number > 1}
    seconds = in_turn(runs | together, pairs)
    th.set_num_threads(before)
    for other in others:
        other.shutdown()
    model.env.close()
    found: dict[str, dict[str, list[float]]] = {"threads": {}, "processes": {}}
    for run, values in seconds.items():
        number, kind = run.split()
        found[kind][number] = values
    return found


def _trained(name: str) -> Any:
    """Return a model with a rollout."""
    model = WORKLOADS[name].workload.model(partial(PPOClip, device="cpu", fast=True))
    return model.learn(model.n_steps * model.n_envs)


def _update(model: Any, threads: int) -> float:
    """Return the seconds of an update."""
    th.set_num_threads(threads)
    start = time.perf_counter()
    model.train()
    return since(start)


_own: Any = None
"""The model of a process beside the first one."""


def _prepare(name: str) -> None:
    global _own
    _own = _trained(name)


def _update_own() -> float:
    return _update(_own, 1)


def table(runs: Mapping[str, Mapping[str, Seconds]]) -> list[str]:
    """Return a table of the measured times, and of the speed over one thread and of independent processes."""
    lines = [
        "| workload | threads | milliseconds of an update | speed over 1 thread | speed of as many processes |",
        "|---|---|---|---|---|",
    ]
    for name, of_workload in runs.items():
        alone = np.array(of_workload["threads"]["1"])
        together = {"1": alone, **of_workload["processes"]}
        for number, values in of_workload["threads"].items():
            each, best = np.array(values), int(number) * alone / np.array(together[number])
            cells = (name, number, quartiles(each * 1e3, ".1f"), quartiles(alone / each), quartiles(best))
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=7)
    parser.add_argument("--threads", type=count, default=count_cores(), help="most threads (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Measure and print the table."""

    def of_workload(name: str) -> dict[str, dict[str, list[float]]]:
        return measure(name, doubled_up_to(min(options.threads, WORKLOADS[name].most)), options.pairs)

    print("\n".join(table(measured(options, of_workload, of_each=("threads", "processes"))["runs"])))
    return 0
