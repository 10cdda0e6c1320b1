"""Measure how training scales with the number of processes."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import (
    Count,
    add_options,
    doubled_up_to,
    in_process,
    make_folders,
    of_workloads,
    quartiles,
    reported,
)


class Workload(NamedTuple):
    """An environment, and for each process its number of environments, steps of a rollout and rows of a minibatch."""

    env_id: str
    n_envs: int
    n_steps: int
    batch_size: int


WORKLOADS = {
    "halfcheetah": Workload("HalfCheetah-v5", 1, 2048, 64),
    "halfcheetah-8": Workload("HalfCheetah-v5", 8, 256, 64),
    "halfcheetah-8-512": Workload("HalfCheetah-v5", 8, 256, 512),
    "humanoid": Workload("Humanoid-v5", 1, 2048, 64),
    "humanoid-8": Workload("Humanoid-v5", 8, 256, 64),
}
ROLLOUTS = 6
"""Rollouts of a measurement. SB3's PPO makes fewer larger ones, but at least one."""


def launch(processes: int, *arguments: object) -> Any:
    """Run ``scaling_run`` in new processes, and return what rank 0 measures.

    :raises SystemExit: if a process fails; the message ends with its last output
    """
    module = ["benchmarks.scaling_run", *map(str, arguments)]
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    command = [sys.executable, "-W", "ignore", "-m", *(launcher if processes > 1 else []), *module]
    return in_process(" ".join(module), command)


def runs_in(workload: Workload, most: int) -> dict[str, partial[float]]:
    """Return runs of 1, 2, 4, ... processes with as many environments each, and of SB3 with all those.

    Each returns the steps per second.
    """
    env_id, n_envs, n_steps, batch_size = workload

    def rate_of(algorithm: str, processes: int, shares: int, rollouts: int) -> partial[float]:
        of_all = (n_envs * shares, n_steps, batch_size * shares, rollouts)
        return partial(launch, processes, algorithm, env_id, *of_all)

    ours = {_label(count): rate_of("PPOClip", count, 1, ROLLOUTS) for count in doubled_up_to(most)}
    return ours | {"SB3's PPO": rate_of("PPO", 1, most, max(1, ROLLOUTS // most))}


def _label(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=5)
    parser.add_argument("--processes", action=Count, default=2, help="most processes (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measurements")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without measuring")


def run(options: argparse.Namespace) -> int:
    """Measure and print the table."""
    if options.report is None:
        make_folders(options.json)
        measured = of_workloads(
            lambda name: runs_in(WORKLOADS[name], options.processes), options.workloads, options.pairs, options.json
        )
    else:
        measured = reported(options.report, "runs")
    print("\n".join(rates_table(measured["runs"])))
    return 0


def rates_table(rates: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return a table of the steps per second, and of their ratio to those of one process."""
    lines = ["| workload | | steps/s | over 1 process |", "|---|---|---|---|"]
    for name, of_runs in rates.items():
        alone = np.array(of_runs["1 process"])
        for label, values in of_runs.items():
            lines.append(f"| {name} | {label} | {np.median(values):.0f} | {quartiles(np.array(values) / alone)} |")
    return lines
