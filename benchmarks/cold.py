"""Compare whole processes: the time of their imports, the time of a short run, and its peak memory."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measuring
from benchmarks.measuring import add_options, in_process, since

# Imports only what users of the algorithm import, so that runs of SB3's PPO load nothing of this package.
SCRIPT = """
import json, resource, sys, time
from pathlib import Path
from importlib import import_module
module, name, env, policy, arguments, steps = json.loads(sys.argv[1])
start = time.process_time()
algorithm = getattr(import_module(module), name)
imports = time.process_time() - start
import torch
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack
torch.set_num_threads(1)
if policy == "CnnPolicy":
    import ale_py, gymnasium
    gymnasium.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(*env, seed=0), 4)
else:
    env = make_vec_env(*env, seed=0)
algorithm(policy, env, seed=0, device="cpu", **arguments).learn(steps)
if sys.platform == "linux":  # where ru_maxrss begins with the peak of the process that started this one
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 2**10
else:
    unit = 1 if sys.platform == "darwin" else 2**10  # macOS counts bytes, others KiB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
print(json.dumps([imports, peak / 2**20]))
"""
IMAGES = {"n_steps": 128, "batch_size": 256, "n_epochs": 4}
# Environment id and number of environments, policy, arguments, and steps.
RUNS: dict[str, tuple[tuple[str, int], str, dict[str, int], int]] = {
    "cartpole": (("CartPole-v1", 8), "MlpPolicy", {"n_steps": 256}, 20_000),
    "halfcheetah": (("HalfCheetah-v5", 1), "MlpPolicy", {}, 4096),
    "breakout": (("BreakoutNoFrameskip-v4", 8), "CnnPolicy", IMAGES, 2048),
}
ALGORITHMS = {"PPO": "stable_baselines3", "PPOClip": "sb3_ppo_variants"}
COLUMNS = ("seconds of imports", "seconds in all", "peak memory, MiB")


def measure(algorithm: str, workload: str) -> list[float]:
    """Train in a new process.

    :return: CPU seconds of importing the algorithm, seconds from the start to the end of the process, and its peak
        memory in MiB
    :raises SystemExit: if the process fails; the message ends with its last output
    """
    asked = json.dumps([ALGORITHMS[algorithm], algorithm, *RUNS[workload]])
    # Let Python write bytecode: after the warm-up runs every module is compiled, as after an installation.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, asked]
    imports, memory = in_process(f"{algorithm} on {workload}", command, env)
    return [round(imports, 6), since(start), round(memory, 1)]


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, RUNS, list(RUNS), pairs=5)
    parser.add_argument("--json", type=Path, help="file for the measurements")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without measuring")


def _runs(workload: str) -> dict[str, Callable[[], list[float]]]:
    return {name: partial(measure, name, workload) for name in ALGORITHMS}


def run(options: argparse.Namespace) -> int:
    """Measure SB3's PPO and PPOClip in turn and print a table of medians."""
    if options.report is not None:
        measured = measuring.reported(options.report, "runs", of_each=ALGORITHMS)
    else:
        measured = measuring.of_workloads(_runs, options.workloads, options.pairs, options.json)
    print("\n".join(table(measured["runs"])))
    return 0


def table(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table of the medians of SB3's PPO and PPOClip, and of the ratios PPOClip / PPO of consecutive runs."""
    lines = [f"| workload | {' | '.join(f'{column}: PPO, PPOClip' for column in COLUMNS)} |", "|---|---|---|---|"]
    for workload, of_workload in runs.items():
        theirs, ours = (np.array(of_workload[name]) for name in ALGORITHMS)
        # The clock of a processor may change between two pairs of runs, and seldom does within one.
        medians = (np.median(values, axis=0) for values in (theirs, ours, ours / theirs))
        cells = [f"{a:.3g}, {b:.3g} ({ratio:.2f}x)" for a, b, ratio in zip(*medians, strict=True)]
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    return lines
