"""Measure how fast updates are in several threads.

Beside them, it measures as many processes that update models of their own at the same time, in one thread each: two
cores share memory and a clock, so no threads can be expected to be faster than these.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch as th

from benchmarks.measuring import (
    Count,
    Other,
    add_options,
    circumstances,
    doubled_up_to,
    in_turn,
    make_folders,
    quartiles,
    reported,
    since,
)
from benchmarks.workloads import WORKLOADS as TRAINED
from benchmarks.workloads import Workload, with_wide_networks
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.envs.cores import count_cores


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
    others = [Other(partial(_prepare, name)) for _ in range(max(counts) - 1)]

    def update_together(count: int) -> float:
        start = time.perf_counter()
        for other in others[: count - 1]:
            other.begin()
        _update(model, 1)
        for other in others[: count - 1]:
            other.result()
        return since(start)

    with _same_threads_after():
        runs = {f"{count} threads": partial(_update, model, count) for count in counts}
        together = {f"{count} processes": partial(update_together, count) for count in counts if count > 1}
        seconds = in_turn(runs | together, pairs)
    for other in others:
        other.end()
    model.env.close()
    found: dict[str, dict[str, list[float]]] = {"threads": {}, "processes": {}}
    for run, values in seconds.items():
        count, kind = run.split()
        found[kind][count] = values
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


def _prepare(name: str) -> Callable[[], float]:
    return partial(_update, _trained(name), 1)


@contextmanager
def _same_threads_after() -> Iterator[None]:
    before = th.get_num_threads()
    try:
        yield
    finally:
        th.set_num_threads(before)


def table(runs: Mapping[str, Mapping[str, Seconds]]) -> list[str]:
    """Return a table of the measured times, and of the speed over one thread and of independent processes."""
    lines = [
        "| workload | threads | milliseconds of an update | speed over 1 thread | speed of as many processes |",
        "|---|---|---|---|---|",
    ]
    for name, measured in runs.items():
        alone = np.array(measured["threads"]["1"])
        together = {"1": alone, **measured["processes"]}
        for count, values in measured["threads"].items():
            each, best = np.array(values), int(count) * alone / np.array(together[count])
            cells = (name, count, quartiles(each * 1e3, ".1f"), quartiles(alone / each), quartiles(best))
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=7)
    parser.add_argument("--threads", action=Count, default=count_cores(), help="most threads (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measured seconds")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without measuring")


def run(options: argparse.Namespace) -> int:
    """Measure and print the table."""
    make_folders(options.json)
    if options.report is None:
        most = {name: min(options.threads, WORKLOADS[name].most) for name in options.workloads}
        runs = {name: measure(name, doubled_up_to(count), options.pairs) for name, count in most.items()}
        measured = {**circumstances(), "runs": runs}
    else:
        measured = reported(options.report, "runs", of_each=("threads", "processes"))
    print("\n".join(table(measured["runs"])))
    if options.json is not None:
        options.json.write_text(json.dumps(measured) + "\n")
    return 0
