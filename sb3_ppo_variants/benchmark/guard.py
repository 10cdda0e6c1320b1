"""Measure what the guards cost: PPOClip with and without them, in alternating runs of one process."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.benchmark.throughput import DEFAULT_WORKLOADS, WORKLOADS, Algorithms, Workload, measure
from sb3_ppo_variants.guards.dummy import DummySteps, can_step
from sb3_ppo_variants.guards.stand_in import standing_in
from sb3_ppo_variants.variants import PPOClip

# The share of the time of a run that the guards may take.
BAR = 0.01


class Unguarded(PPOClip):
    """Takes the same steps without a check."""

    _guarded = False

    @contextmanager
    def _guards(self) -> Iterator[None]:
        with standing_in(self, _unchecked):
            yield


def _unchecked(env: VecEnv) -> DummySteps:
    assert can_step(env)
    return DummySteps(env)


def costs(workload: Workload, pairs: int, fast: bool) -> list[float]:
    """What the guards add to the time of a run, as a share of it, for each pair of runs."""
    algorithms: Algorithms = {cls.__name__: partial(cls, device="cpu", fast=fast) for cls in (Unguarded, PPOClip)}
    seconds: dict[str, Any] = measure(workload, algorithms, pairs)["seconds"]
    return [
        with_guards / without - 1 for with_guards, without in zip(seconds["PPOClip"], seconds["Unguarded"], strict=True)
    ]


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=WORKLOADS,
        default=[*DEFAULT_WORKLOADS, "halfcheetah-normalized"],
        metavar="NAME",
        help=f"of {', '.join(WORKLOADS)}",
    )
    parser.add_argument("--reference", action="store_true", help="also with fast=False")
    parser.add_argument("--pairs", type=int, default=30, help="runs with and without (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measured shares")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure and print a table of medians with quartiles.

    :return: 0 if no median is more than the bar
    """
    if options.pairs < 1:
        raise SystemExit(f"--pairs {options.pairs} is not allowed; allowed: an integer >= 1")
    th.set_num_threads(options.threads)
    measured: dict[str, list[float]] = {}
    print("| workload | path | cost of the guards, median (quartiles) |\n|---|---|---|")
    for name in options.workloads:
        for fast in (True, False) if options.reference else (True,):
            path = "fast" if fast else "reference"
            measured[f"{name}, {path}"] = shares = costs(WORKLOADS[name], options.pairs, fast)
            low, median, high = np.quantile(shares, [0.25, 0.5, 0.75])
            print(f"| {name} | {path} | {median:.2%} ({low:.2%} to {high:.2%}) |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({name: np.round(shares, 5).tolist() for name, shares in measured.items()}))
    return int(any(np.median(shares) > BAR for shares in measured.values()))
