"""Measure what the guards cost: PPOClip with and without them, in alternating runs of one process."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.backends import torch_update
from sb3_ppo_variants.benchmark.measuring import Count, add_options, quartiles
from sb3_ppo_variants.benchmark.throughput import measure
from sb3_ppo_variants.benchmark.workloads import DEFAULT_WORKLOADS, WORKLOADS
from sb3_ppo_variants.guards.dummy import DummySteps, can_step
from sb3_ppo_variants.guards.stand_in import standing_in
from sb3_ppo_variants.variants import PPOClip

# The share of the time of a run that the guards may take.
BAR = 0.01


class NoSnapshot:
    """Keeps nothing to go back to."""

    def __init__(self, policy: object, optimizers: object):
        pass


class Unguarded(PPOClip):
    """Takes the same steps without a check; with PyTorch, updates cannot be undone."""

    _guarded = False

    def train(self) -> None:
        """Update the policy."""
        with mock.patch.object(torch_update, "Snapshot", NoSnapshot):
            super().train()

    @contextmanager
    def _guards(self) -> Iterator[None]:
        with standing_in(self, _unchecked):
            yield


def _unchecked(env: VecEnv) -> DummySteps | VecEnv:
    return DummySteps(env) if can_step(env) else env


def costs(workload: str, pairs: int, fast: bool) -> np.ndarray:
    """What the guards add to the time of a run, as a share of it, for each pair of runs."""
    algorithms = {cls.__name__: partial(cls, device="cpu", fast=fast) for cls in (Unguarded, PPOClip)}
    seconds = measure(WORKLOADS[workload], algorithms, pairs)["seconds"]
    return np.array(seconds["PPOClip"]) / np.array(seconds["Unguarded"]) - 1


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, [*DEFAULT_WORKLOADS, "halfcheetah-normalized"], pairs=30)
    parser.add_argument("--reference", action="store_true", help="also with fast=False")
    parser.add_argument("--threads", action=Count, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measured shares")


def run(options: argparse.Namespace) -> int:
    """Measure and print a table of medians with quartiles, and return whether a median is more than the bar."""
    th.set_num_threads(options.threads)
    measured = {}
    print("| workload | path | cost of the guards, median (quartiles) |\n|---|---|---|")
    for name in options.workloads:
        for path in ("fast", "reference") if options.reference else ("fast",):
            shares = measured[f"{name}, {path}"] = costs(name, options.pairs, fast=path == "fast")
            print(f"| {name} | {path} | {quartiles(shares, '.2%')} |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({name: shares.round(5).tolist() for name, shares in measured.items()}))
    return int(any(np.median(shares) > BAR for shares in measured.values()))
