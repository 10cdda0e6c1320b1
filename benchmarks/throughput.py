"""Compare the speed of the variants with SB3's PPO, or with sb3-contrib's, in alternating runs in one process."""

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from benchmarks import measuring
from benchmarks.measuring import count, quartiles, since
from benchmarks.workloads import (
    BARS,
    DEFAULT_WORKLOADS,
    REFERENCE,
    WORKLOADS,
    Algorithms,
    Workload,
)
from sb3_ppo_variants import variants
from sb3_ppo_variants.errors import ArgumentError

# The algorithms that train without an objective of the user's.
OURS = [name for name in variants.__all__ if name != "PPOCustom"]
# The algorithms of other packages.
THEIRS = ("PPO", "MaskablePPO", "RecurrentPPO", "SBX PPO")
DEVICE = """devices for our algorithms, such as cuda cpu (default: cpu); those of SB3 and sb3-contrib run on the first,
and SBX's where JAX puts it"""


def _learn(model: OnPolicyAlgorithm, rollouts: int) -> tuple[float, float]:
    """Train without callbacks, which take time at each step, and return the seconds of the run and of its rollouts."""
    collect, spent = model.collect_rollouts, []

    def timed(*arguments: Any, **named: Any) -> bool:
        begun = time.perf_counter()
        go_on = collect(*arguments, **named)
        spent.append(since(begun))
        return go_on

    model.collect_rollouts = timed  # type: ignore[method-assign]
    start = time.perf_counter()
    model.learn(model.n_steps * model.n_envs * rollouts)
    seconds = since(start)
    del model.collect_rollouts
    return seconds, round(sum(spent), 6)


def measure(workload: Workload, algorithms: Algorithms, pairs: int) -> dict[str, Any]:
    """Run the algorithms in turn, ``pairs`` times each, after one warm-up run each.

    :return: ``steps`` over all environments in a run, ``seconds`` and ``rollout_seconds`` of each run by algorithm, and
        ``floor``: the seconds that the environments alone take for the same number of steps, with random actions
    """
    models = {name: workload.model(algorithm, name not in THEIRS) for name, algorithm in algorithms.items()}
    learn = {name: partial(_learn, model, workload.rollouts) for name, model in models.items()}
    runs = measuring.in_turn(learn, pairs)
    model = next(iter(models.values()))
    env = workload.env()
    env.reset()
    steps = model.n_steps * workload.rollouts
    return {
        "steps": steps * model.n_envs,
        "seconds": {name: [seconds for seconds, _ in of_model] for name, of_model in runs.items()},
        "rollout_seconds": {name: [seconds for _, seconds in of_model] for name, of_model in runs.items()},
        "floor": measuring.seconds_to_step(env, steps),
    }


def rows(name: str, measured: dict[str, Any]) -> list[str]:
    """Return the rows of the table for one workload."""
    lines = []
    for algorithm, of_runs in measured["seconds"].items():
        seconds = np.array(of_runs)
        ratio = quartiles(np.array(next(iter(measured["seconds"].values()))) / seconds)
        share = np.median(np.array(measured["rollout_seconds"][algorithm]) / seconds)
        rate = measured["steps"] / np.median(seconds)
        lines.append(f"| {name} | {algorithm} | {ratio} | {rate:.0f} | {share:.0%} | {1 - share:.0%} |")
    return [*lines, f"| {name} | environments alone | | {measured['steps'] / measured['floor']:.0f} | | |"]


def bars(runs: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return a table of the workloads that have a bar: the measured speed of PPOClip, the bar and the goal."""
    lines = ["| workload | speed over SB3's PPO | bar | goal |", "|---|---|---|---|"]
    for name, bar in BARS.items():
        if name in runs:
            seconds = runs[name]["seconds"]
            ratio = quartiles(np.array(seconds["PPO"]) / np.array(seconds["PPOClip"]))
            lines.append(f"| {bar.workload} | {ratio} | {bar.least:g} | {bar.goal:g} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    measuring.add_options(parser, WORKLOADS, DEFAULT_WORKLOADS, pairs=7)
    measuring.add_names(parser, "--algorithms", OURS, ["PPOClip"])
    parser.add_argument("--bars", action="store_true", help="compare the speed of PPOClip with its bars and goals")
    parser.add_argument("--reference", action="store_true", help="also run PPOClip with fast=False")
    parser.add_argument("--peers", action="store_true", help="also run SBX's PPO (pip install sbx-rl)")
    parser.add_argument("--threads", type=count, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--device", nargs="+", default=["cpu"], help=DEVICE)


def _algorithms(options: argparse.Namespace) -> Algorithms:
    algorithms: dict[str, Callable[..., Any]] = {}
    for device in options.device:
        where = "" if device == options.device[0] else f" on {device}"
        algorithms |= {f"{name}{where}": partial(getattr(variants, name), device=device) for name in options.algorithms}
        if options.reference:
            algorithms[f"{REFERENCE}{where}"] = partial(variants.PPOClip, device=device, fast=False)
    if options.peers:
        try:
            import sbx
        except ImportError as error:
            raise SystemExit("--peers needs SBX: pip install sbx-rl") from error
        algorithms["SBX PPO"] = sbx.PPO
    return algorithms


def _workloads(options: argparse.Namespace) -> list[str]:
    """Return the workloads to measure; with ``--bars``, by default all that have a bar.

    :raises ArgumentError: if there is no bar for one of those that ``--bars`` is to compare
    """
    if not options.bars:
        return options.workloads
    # A list that the user gives may equal the default, but it is another object.
    if options.workloads is DEFAULT_WORKLOADS:
        return list(BARS)
    for name in options.workloads:
        if name not in BARS:
            raise ArgumentError(f"--bars: {name} in --workloads has no bar; those that have one are {', '.join(BARS)}")
    return options.workloads


def run(options: argparse.Namespace) -> int:
    """Measure and print a table of medians, with quartiles of the speed relative to the workload's first algorithm."""
    if options.bars and "PPOClip" not in options.algorithms:
        raise SystemExit("--bars needs PPOClip among --algorithms")
    th.set_num_threads(options.threads)
    options.workloads, algorithms = _workloads(options), _algorithms(options)

    def of_workload(name: str) -> dict[str, Any]:
        workload = WORKLOADS[name]
        return measure(workload, workload.with_baseline(algorithms, options.device[0]), options.pairs)

    cuda = [device for device in options.device if th.device(device).type == "cuda"]
    gpu = {"gpu": th.cuda.get_device_name(cuda[0])} if cuda else {}
    found = measuring.measured(options, of_workload, ["threads"], threads=options.threads, **gpu)
    if options.bars:
        print("\n".join(bars(found["runs"])))
        return 0
    print("| workload | algorithm | speed over the first | steps/s | rollout | update |\n|---|---|---|---|---|---|")
    for name, values in found["runs"].items():
        print("\n".join(rows(name, values)))
    return 0
