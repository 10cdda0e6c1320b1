"""Measure how training scales with the number of processes, and estimate from its parts how it scales to many more."""

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
    in_turn,
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
    n_parameters: int
    """Number of parameters of the policy."""


WORKLOADS = {
    "halfcheetah": Workload("HalfCheetah-v5", 1, 2048, 64, 11_085),
    "halfcheetah-8": Workload("HalfCheetah-v5", 8, 256, 64, 11_085),
    "halfcheetah-8-512": Workload("HalfCheetah-v5", 8, 256, 512, 11_085),
    "humanoid": Workload("Humanoid-v5", 1, 2048, 64, 54_179),
    "humanoid-8": Workload("Humanoid-v5", 8, 256, 64, 54_179),
}
SIZES = (12_000, 200_000)
"""Sizes, in floats, of the vectors whose averaging is timed."""
MANY = (8, 64, 512)
EPOCHS = 10
ROLLOUTS = 6
"""Rollouts of a measurement. SB3's PPO makes fewer larger ones, but at least one."""
ASSUMPTIONS = """The model: every process trains as fast as one alone and waits only for the means of gradients,
one for each minibatch. A mean costs what it does in a ring: 2 (W - 1) (a + b n / W) for W processes and n floats. The
latency a and the time b of a float are those of the two sizes measured above, between two processes of one machine. So
the model leaves out slower networks between machines, waits for the slowest process, and algorithms faster than a ring.
The rows of a minibatch grow with W, which may need another step size."""


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
    env_id, n_envs, n_steps, batch_size, _ = workload

    def rate_of(algorithm: str, processes: int, shares: int, rollouts: int) -> partial[float]:
        of_all = (n_envs * shares, n_steps, batch_size * shares, rollouts)
        return partial(launch, processes, "rate", algorithm, env_id, *of_all)

    ours = {_label(count): rate_of("PPOClip", count, 1, ROLLOUTS) for count in doubled_up_to(most)}
    return ours | {"SB3's PPO": rate_of("PPO", 1, most, max(1, ROLLOUTS // most))}


def _label(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=5)
    parser.add_argument("--processes", action=Count, default=2, help="most processes (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measurements")
    parser.add_argument("--report", type=Path, help="print the tables of such a file, without measuring")


def run(options: argparse.Namespace) -> int:
    """Measure and print the tables."""
    measured = _measure_all(options) if options.report is None else reported(options.report, "runs", "averages")
    print("\n".join([*rates_table(measured["runs"]), "", *averages_table(measured["averages"]), ""]))
    print("\n".join([*model_table(measured), "", ASSUMPTIONS]))
    return 0


def _measure_all(options: argparse.Namespace) -> dict[str, Any]:
    make_folders(options.json)
    averages = in_turn({str(size): partial(launch, 2, "average", size) for size in SIZES}, options.pairs)

    def runs_of(name: str) -> dict[str, partial[float]]:
        return runs_in(WORKLOADS[name], options.processes)

    return of_workloads(runs_of, options.workloads, options.pairs, options.json, averages=averages)


def rates_table(rates: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return a table of the steps per second, and of their ratio to those of one process."""
    lines = ["| workload | | steps/s | over 1 process |", "|---|---|---|---|"]
    for name, of_runs in rates.items():
        alone = np.array(of_runs["1 process"])
        for label, values in of_runs.items():
            lines.append(f"| {name} | {label} | {np.median(values):.0f} | {quartiles(np.array(values) / alone)} |")
    return lines


def averages_table(averages: dict[str, list[float]]) -> list[str]:
    """Return a table of the time it takes to average a gradient over two processes."""
    lines = ["| floats | microseconds for their mean over 2 processes |", "|---|---|"]
    return [*lines, *(f"| {size} | {quartiles(np.array(of) * 1e6, '.0f')} |" for size, of in averages.items())]


def model_table(measured: dict[str, Any]) -> list[str]:
    """Return a table of the share of W times the speed of one process that remains when gradients are averaged.

    The shares that processes reached stand beside the predictions for as many.
    """
    small, large = (float(np.median(measured["averages"][str(size)])) for size in SIZES)
    # 2 (W - 1) (a + b n / W) with W = 2.
    per_float = max(large - small, 0.0) / (SIZES[1] - SIZES[0])
    latency = max(small / 2 - per_float * SIZES[0] / 2, 0.0)
    counts = sorted({int(label.split()[0]) for of in measured["runs"].values() for label in of if label[0].isdigit()})
    seen = [count for count in counts if count > 1]
    shown = sorted({*seen, *MANY})
    heads = [head for w in shown for head in (_label(w), *([f"{w}, as measured"] if w in seen else []))]
    lines = [f"| workload | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name, of_runs in measured["runs"].items():
        workload = WORKLOADS[name]
        rows = workload.n_envs * workload.n_steps
        one = np.array(of_runs[_label(1)])
        alone, averages = rows / float(np.median(one)), EPOCHS * rows / workload.batch_size
        shares = []
        for w in shown:
            average = 2 * (w - 1) * (latency + per_float * workload.n_parameters / w)
            shares.append(alone / (alone + averages * average))
            if w in seen:
                shares.append(float(np.median(np.array(of_runs[_label(w)]) / one)) / w)
        lines.append(f"| {name} | {' | '.join(f'{share:.0%}' for share in shares)} |")
    return lines
