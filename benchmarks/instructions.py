"""Count instructions with valgrind. Unlike times, the counts do not depend on what else the machine does."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch as th

from benchmarks.unguarded import PPOClip, Unguarded
from benchmarks.workloads import WORKLOADS
from sb3_ppo_variants.errors import ArgumentError

CLASSES = {cls.__name__: cls for cls in (Unguarded, PPOClip)}
PATHS = ("native", "reference")
# With these, two processes with the same seeds execute the same instructions.
FIXED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null")


def count(workload: str, name: str, path: str) -> int:
    """Count the instructions of a run after one warm-up run, in a separate process.

    :param name: name of the class, a key of ``CLASSES``
    :param path: one of ``PATHS``
    :raises ArgumentError: if valgrind is not installed
    """
    if shutil.which("valgrind") is None:
        raise ArgumentError("--instructions counts with valgrind, which is not installed")
    script = f"from benchmarks import instructions; instructions.learn{(workload, name, path)}"
    command = [*VALGRIND, sys.executable, "-c", script]
    run = subprocess.run(command, env={**os.environ, **FIXED}, stderr=subprocess.PIPE, text=True)
    collected = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or collected is None:
        raise RuntimeError(f"valgrind could not count:\n{run.stderr}")
    return int(collected[1])


def learn(workload: str, name: str, path: str) -> None:
    """Train for two rollouts: the first is to warm up, and the instructions of the second are counted."""
    th.set_num_threads(1)
    model = WORKLOADS[workload].model(partial(CLASSES[name], device="cpu", fast=path != "reference"))
    steps = model.n_steps * model.n_envs
    model.learn(steps)
    with _counted():
        model.learn(steps)


@contextmanager
def _counted() -> Iterator[None]:
    _switch("on")
    yield
    _switch("off")


def _switch(to: str) -> None:
    asked = subprocess.Popen(["vgdb", f"--pid={os.getpid()}", "instrumentation", to], stdout=subprocess.DEVNULL)
    while asked.poll() is None:  # A process that only waits does not react, and one that only polls is counted.
        time.sleep(0.1)
    if asked.returncode != 0:
        raise RuntimeError("vgdb could not reach valgrind")


def cost(counts: Mapping[str, int]) -> float:
    """Return the instructions that the guards add, relative to a run without them."""
    return counts["PPOClip"] / counts["Unguarded"] - 1


def table(counted: Mapping[str, Mapping[str, int]]) -> str:
    """Return a table with a row for each workload and path."""
    lines = ["| workload | path | instructions without guards | the guards add |", "|---|---|---|---|"]
    for name, counts in counted.items():
        lines.append(f"| {name.replace(', ', ' | ')} | {counts['Unguarded']:,} | {cost(counts):.2%} |")
    return "\n".join(lines)
