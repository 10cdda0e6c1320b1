"""Compare whole processes: the time of a short run with its imports, and the most memory it takes."""

import argparse
import json
import subprocess
import sys
import time

import numpy as np

from sb3_ppo_variants.benchmark.measuring import add_options, since

SCRIPT = """
import json, resource, sys
from sb3_ppo_variants.benchmark.workloads import WORKLOADS
name, workload, steps = sys.argv[1], WORKLOADS[sys.argv[2]], int(sys.argv[3])
import torch
torch.set_num_threads(1)
if name == "PPO":
    from stable_baselines3 import PPO as algorithm
else:
    from sb3_ppo_variants import PPOClip as algorithm
workload.model(algorithm, name != "PPO").learn(steps)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
"""
RUNS = {"cartpole": 20_000, "halfcheetah": 4096, "breakout": 2048}
ALGORITHMS = ("PPO", "PPOClip")


def measure(algorithm: str, workload: str) -> tuple[float, float]:
    """Train in a new process.

    :return: seconds from its start to its end, and the most memory it had, in MiB
    """
    start = time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, algorithm, workload, str(RUNS[workload])]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return since(start), json.loads(finished.stdout.splitlines()[-1])


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, RUNS, list(RUNS), pairs=5)


def run(options: argparse.Namespace) -> int:
    """Measure SB3's PPO and PPOClip in turn and print a table of medians."""
    print("| workload | steps | algorithm | seconds, imports included | peak memory, MiB |\n|---|---|---|---|---|")
    for workload in options.workloads:
        runs = np.array([[measure(algorithm, workload) for algorithm in ALGORITHMS] for _ in range(options.pairs)])
        for algorithm, (seconds, memory) in zip(ALGORITHMS, np.median(runs, axis=0), strict=True):
            print(f"| {workload} | {RUNS[workload]} | {algorithm} | {seconds:.1f} | {memory:.0f} |", flush=True)
    return 0
