"""Measure what the guards cost: PPOClip with and without them, in alternating runs in one process."""

import argparse
import json
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch as th

from benchmarks import instructions
from benchmarks.measuring import Count, add_options, make_folders, quartiles, reported
from benchmarks.throughput import measure
from benchmarks.unguarded import PPOClip, Unguarded
from benchmarks.workloads import DEFAULT_WORKLOADS, WORKLOADS

# The guards may add at most this share to the time of a run, or to its instructions.
BAR = 0.01


def costs(workload: str, pairs: int, fast: bool) -> np.ndarray:
    """Return the time that the guards add, relative to a run without them, for each pair of runs."""
    algorithms = {cls.__name__: partial(cls, device="cpu", fast=fast) for cls in (Unguarded, PPOClip)}
    seconds = measure(WORKLOADS[workload], algorithms, pairs)["seconds"]
    return np.array(seconds["PPOClip"]) / np.array(seconds["Unguarded"]) - 1


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, [*DEFAULT_WORKLOADS, "halfcheetah-normalized"], pairs=30)
    parser.add_argument("--reference", action="store_true", help="also measure with fast=False")
    parser.add_argument("--threads", action=Count, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--instructions", action="store_true", help="count instructions with valgrind, on every path")
    parser.add_argument("--json", type=Path, help="file for the measured shares, or the instruction counts")
    parser.add_argument("--report", type=Path, help="print the table of a file of instruction counts, without counting")


def run(options: argparse.Namespace) -> int:
    """Measure and print a table, and return 1 if the guards cost more than the bar on any workload."""
    make_folders(options.json)
    if options.report is not None or options.instructions:
        return _run_counted(options)
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


def _run_counted(options: argparse.Namespace) -> int:
    counted = _counted(options) if options.report is None else reported(options.report, of_each=instructions.CLASSES)
    print(instructions.table(counted))
    return int(any(instructions.cost(counts) > BAR for counts in counted.values()))


def _counted(options: argparse.Namespace) -> dict[str, dict[str, int]]:
    """Count all instructions, and write the file after each path, so that an interrupt loses only the last one."""
    counted = {}
    for name, path in product(options.workloads, instructions.PATHS):
        counted[f"{name}, {path}"] = {cls: instructions.count(name, cls, path) for cls in instructions.CLASSES}
        if options.json is not None:
            options.json.write_text(json.dumps(counted, indent=1) + "\n")
    return counted
