"""Helpers for the speed benchmarks: options, alternating runs, quartiles, and the versions and machine of a result."""

import argparse
import json
import multiprocessing as mp
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.commandline import whole_number
from sb3_ppo_variants.compare.records import circumstances
from sb3_ppo_variants.envs.masks import random_actions
from sb3_ppo_variants.errors import ArgumentError

Result = TypeVar("Result")


class Count(argparse.Action):
    """Accepts an integer >= 1."""

    def __init__(self, option_strings: list[str], dest: str, **kwargs: Any):
        super().__init__(option_strings, dest, type=whole_number, **kwargs)

    def __call__(self, parser: object, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        """:raises ArgumentError: (a ``ValueError``) if the integer is smaller"""
        if value < 1:
            raise ArgumentError(f"{option} must be an integer >= 1, not {value}")
        setattr(namespace, self.dest, value)


def add_names(parser: argparse.ArgumentParser, option: str, names: Iterable[str], default: list[str]) -> None:
    """Add an option that takes one or more of these names."""
    described = f"some of %(choices)s (default: {', '.join(default)})"
    parser.add_argument(option, nargs="+", choices=names, default=default, metavar="NAME", help=described)


def add_options(parser: argparse.ArgumentParser, workloads: Iterable[str], default: list[str], pairs: int) -> None:
    """Add the options that these benchmarks have in common."""
    add_names(parser, "--workloads", workloads, default)
    parser.add_argument("--pairs", "--rounds", action=Count, default=pairs, help="runs of each (default: %(default)s)")


def doubled_up_to(most: int) -> list[int]:
    """Return 1, 2, 4, ..., and ``most``."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def make_folders(*files: Path | None) -> None:
    """Create the folders of the files for results. Call this first, so that no measurement is lost for want of one."""
    for file in files:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)


def reported(file: Path, *keys: str, of_each: Iterable[str] = ()) -> dict[str, Any]:
    """Read the results that a benchmark has written with ``--json``.

    :param keys: what they contain
    :param of_each: what each workload contains, in ``runs`` or, without this key, in the file
    :raises ArgumentError: if the file cannot be read, or is not such a file
    """
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--report {file} cannot be read as a file that --json wrote: {error}") from error
    known = isinstance(found, dict) and set(keys) <= set(found)
    if not known or not _contain(found["runs"] if "runs" in keys else found, {*of_each}):
        raise ArgumentError(f"--report {file} is not a file that --json of this command wrote")
    return found


def _contain(workloads: Any, names: set[str]) -> bool:
    """Return whether each workload is a mapping with these names. There may be none to look for."""
    each: Iterable[Any] = workloads.values() if isinstance(workloads, dict) else []
    return not names or all(isinstance(workload, dict) and names <= set(workload) for workload in each)


def in_turn(runs: Mapping[str, Callable[[], Result]], pairs: int) -> dict[str, list[Result]]:
    """Return the results of each run in ``pairs`` alternating repetitions, after one repetition to warm up."""
    results: dict[str, list[Result]] = {name: [] for name in runs}
    for _ in range(1 + pairs):
        for name, run in runs.items():
            results[name].append(run())
    return {name: of_run[1:] for name, of_run in results.items()}


def of_workloads(
    each_of: Callable[[str], Mapping[str, Callable[[], Result]]],
    workloads: Iterable[str],
    pairs: int,
    file: Path | None,
    **others: object,
) -> dict[str, Any]:
    """Run the programs of each workload in turn, and return their results with the circumstances.

    :param each_of: returns the runs of a workload by name
    :param file: JSON file for the results, written after each workload, so that an interrupt loses only the last one
    :param others: what else was measured
    """
    measured: dict[str, Any] = {**circumstances(), **others, "runs": {}}
    make_folders(file)
    for workload in workloads:
        measured["runs"][workload] = in_turn(each_of(workload), pairs)
        if file is not None:
            file.write_text(json.dumps(measured, indent=1) + "\n")
    return measured


def in_process(name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Any:
    """Run a command, and return the JSON in the last line that it prints.

    :param name: what runs, for the message of an error
    :param env: environment variables; ``None`` for those of this process
    :raises SystemExit: if it fails; the message ends with its last output
    """
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{name} failed:\n{ended.stderr[-4000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


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


class Other(Generic[Result]):
    """A process that does something when it is told to, while this one does something else.

    It prepares itself while this process goes on. The first :meth:`begin` waits for that, so let it warm up.

    :param prepare: called in the process; returns what it does then
    """

    def __init__(self, prepare: Callable[[], Callable[[], Result]]):
        context = mp.get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(child, prepare), daemon=True)
        self._process.start()
        child.close()
        self._is_ready = False

    def begin(self) -> None:
        """Let the process begin."""
        self._is_ready = self._is_ready or self._pipe.recv()
        self._pipe.send(True)

    def result(self) -> Result:
        """Wait for the result."""
        return cast(Result, self._pipe.recv())

    def end(self) -> None:
        """End the process."""
        self._pipe.send(False)
        self._process.join()


def _serve(pipe: Connection, prepare: Callable[[], Callable[[], object]]) -> None:
    run = prepare()
    pipe.send(True)
    while pipe.recv():
        pipe.send(run())


def quartiles(values: Iterable[float], form: str = ".2f") -> str:
    """Format the median of values and, in parentheses, their quartiles.

    :param form: format of each number
    """
    low, median, high = np.quantile(np.array(values), [0.25, 0.5, 0.75])
    return f"{median:{form}} ({low:{form}} to {high:{form}})"
