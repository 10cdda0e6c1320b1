"""Measure how fast updates are in several threads, and estimate from that how fast they are in many more."""

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
MANY = (4, 8, 16, 64)
MODEL = """The model: a share of the update stays in one thread, and all threads divide the rest evenly (Amdahl's law).
What cores lose to each other, because they share memory, a clock, or even a core (hyper-threading), is measured with
processes that update models of their own at the same time, in one thread each. The share is fitted to what threads lose
beyond that: t(n) = s t(1) + (1 - s) p(n) / n, where p(n) is the time of n such processes. The speeds are those of cores
that lose nothing to each other. There are at most as many threads as a minibatch has parts."""

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


def serial_share(threads: Seconds, processes: Seconds) -> float:
    """Fit the share s of t(n) = s t(1) + (1 - s) p(n) / n, by least squares, to the medians of t(n) / t(1).

    :param threads: the times t in so many threads
    :param processes: the times p of so many processes
    """
    alone = np.array(threads["1"])
    ratios = np.array([np.median(threads[count] / alone) for count in processes])
    best = np.array([np.median(processes[count] / alone) / int(count) for count in processes])
    return float(np.clip(((ratios - best) * (1 - best)).sum() / ((1 - best) ** 2).sum(), 0, 1))


def predict(share: float, count: int) -> float:
    """Return how many times as fast as in one thread an update is, by Amdahl's law."""
    return 1 / (share + (1 - share) / count)


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


def model_table(runs: Mapping[str, Mapping[str, Seconds]]) -> list[str]:
    """Return a table of the serial shares, and of the speeds that the model predicts."""
    lines = [f"| workload | serial share | {' | '.join(f'{n} cores' for n in MANY)} |", "|---" * (2 + len(MANY)) + "|"]
    for name, measured in runs.items():
        if measured["processes"]:
            share = serial_share(measured["threads"], measured["processes"])
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
        most = {name: min(options.threads, WORKLOADS[name].most) for name in options.workloads}
        runs = {name: measure(name, doubled_up_to(count), options.pairs) for name, count in most.items()}
        measured = {**circumstances(), "runs": runs}
    else:
        measured = reported(options.report, "runs", of_each=("threads", "processes"))
    print("\n".join([*table(measured["runs"]), "", *model_table(measured["runs"]), "", MODEL]))
    if options.json is not None:
        options.json.write_text(json.dumps(measured) + "\n")
    return 0
