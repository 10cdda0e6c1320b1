"""Helpers for the speed benchmarks: options, alternating runs, quartiles, and the versions and machine of a result."""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.commandline import whole_number
from sb3_ppo_variants.compare.records import circumstances
from sb3_ppo_variants.envs.masks import random_actions
from sb3_ppo_variants.errors import ArgumentError

Result = TypeVar("Result")


def count(text: str) -> int:
    """Read an integer >= 1. It is a ``type`` for options."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be an integer >= 1, not {number}")
    return number


def add_names(parser: argparse.ArgumentParser, option: str, names: Iterable[str], default: list[str]) -> None:
    """Add an option that takes one or more of these names."""
    described = f"some of %(choices)s (default: {', '.join(default)})"
    parser.add_argument(option, nargs="+", choices=names, default=default, metavar="NAME", help=described)


def add_options(parser: argparse.ArgumentParser, workloads: Iterable[str], default: list[str], pairs: int) -> None:
    """Add the options that these benchmarks have in common."""
    add_names(parser, "--workloads", workloads, default)
    parser.add_argument("--pairs", "--rounds", type=count, default=pairs, help="runs of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for what is measured")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without measuring")


def doubled_up_to(most: int) -> list[int]:
    """Return 1, 2, 4, ..., and ``most``."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def make_folder(file: Path | None) -> None:
    """Make the folder of a file for results. Call this first, so that no measurement is lost for want of one."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)


def write(found: object, file: Path | None) -> None:
    """Write results to a JSON file, if there is one."""
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n")


def measured(
    options: argparse.Namespace,
    measure: Callable[[str], Mapping[str, Any]],
    keys: Iterable[str] = (),
    of_each: Iterable[str] = (),
    **others: object,
) -> dict[str, Any]:
    """Measure each of the workloads, and write the file after each; or read what was measured, with ``--report``.

    :param measure: measures a workload
    :param keys: what such a file contains besides ``runs``
    :param of_each: what each workload contains in it
    :param others: what is written besides what is measured, and the circumstances
    """
    if options.report is not None:
        return reported(options.report, "runs", *keys, of_each=of_each)
    found: dict[str, Any] = {**circumstances(), **others, "runs": {}}
    make_folder(options.json)
    for workload in options.workloads:
        found["runs"][workload] = measure(workload)
        write(found, options.json)
    return found


def reported(file: Path, *keys: str, of_each: Iterable[str] = ()) -> dict[str, Any]:
    """Read the results that a benchmark has written with ``--json``.

    :param keys: what they contain
    :param of_each: what each workload in ``runs`` contains
    :raises ArgumentError: if the file cannot be read, or is not such a file
    """
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--report {file} cannot be read as a file that --json wrote: {error}") from error
    if not {*keys} <= found.keys() or (of_each and not all({*of_each} <= of.keys() for of in found["runs"].values())):
        raise ArgumentError(f"--report {file} is not a file that --json of this command wrote")
    return found


def in_turn(runs: Mapping[str, Callable[[], Result]], pairs: int) -> dict[str, list[Result]]:
    """Return the results of each run in ``pairs`` alternating repetitions, after one repetition to warm up."""
    results: dict[str, list[Result]] = {name: [] for name in runs}
    for _ in range(1 + pairs):
        for name, run in runs.items():
            results[name].append(run())
    return {name: of_run[1:] for name, of_run in results.items()}


def since(start: float) -> float:
    """Return the seconds since ``time.perf_counter()`` was ``start``, rounded to microseconds to keep files small."""
    return round(time.perf_counter() - start, 6)


def seconds_to_step(env: VecEnv, n_steps: int, step: Callable[[np.ndarray], object] | None = None) -> float:
    """Return the seconds that ``n_steps`` steps take, with the same random actions in every call.

    :param env: environment that has been reset
    :param step: what takes a step instead of the environment's own ``step``
    """
    env.action_space.seed(0)
    take, seconds = step or env.step, 0.0
    for _ in range(n_steps):
        actions = random_actions(env)
        start = time.perf_counter()
        take(actions)
        seconds += time.perf_counter() - start
    return round(seconds, 6)


def quartiles(values: Iterable[float], form: str = ".2f") -> str:
    """Format the median of values and, in parentheses, their quartiles.

    :param form: format of each number
    """
    low, median, high = np.quantile(np.array(values), [0.25, 0.5, 0.75])
    return f"{median:{form}} ({low:{form}} to {high:{form}})"
