"""Measure how training scales with the number of processes."""

import argparse
import subprocess
import sys
import time
from functools import partial
from typing import NamedTuple

import numpy as np
import torch as th
import torch.distributed as dist
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.measuring import (
    add_options,
    count,
    doubled_up_to,
    in_turn,
    measured,
    quartiles,
)
from sb3_ppo_variants.processes import init_processes
from sb3_ppo_variants.variants import PPOClip


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


def launch(processes: int, *arguments: object) -> float:
    """Run this module in new processes, and return what rank 0 measures.

    :raises SystemExit: if a process fails; the message ends with its last output
    """
    module = ["benchmarks.scaling", *map(str, arguments)]
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    command = [sys.executable, "-W", "ignore", "-m", *(launcher if processes > 1 else []), *module]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(module)} failed:\n{ended.stderr[-4000:]}")
    return float(ended.stdout.splitlines()[-1])


def rate(algorithm: str, env_id: str, n_envs: int, n_steps: int, batch_size: int, rollouts: int) -> float:
    """Measure the steps per second of all processes, over rollouts and updates after one to warm up."""
    cls = {"PPO": PPO, "PPOClip": PPOClip}[algorithm]
    env = make_vec_env(env_id, n_envs, seed=0)
    model = cls("MlpPolicy", env, n_steps=n_steps, batch_size=batch_size, seed=0, device="cpu")
    model.learn(1)
    before, start = model.num_timesteps, time.perf_counter()
    model.learn(rollouts * before, reset_num_timesteps=False)
    return (model.num_timesteps - before) / (time.perf_counter() - start)


def measure_here(algorithm: str, env_id: str, *numbers: str) -> None:
    """Measure in each process, and print the result on rank 0."""
    th.set_num_threads(1)
    together = init_processes()
    found = rate(algorithm, env_id, *map(int, numbers))
    if not together or dist.get_rank() == 0:
        print(found, flush=True)


def runs_in(workload: Workload, most: int) -> dict[str, partial[float]]:
    """Return runs of 1, 2, 4, ... processes with as many environments each, and of SB3 with all those.

    Each returns the steps per second.
    """
    env_id, n_envs, n_steps, batch_size = workload

    def rate_of(algorithm: str, processes: int, shares: int, rollouts: int) -> partial[float]:
        of_all = (n_envs * shares, n_steps, batch_size * shares, rollouts)
        return partial(launch, processes, algorithm, env_id, *of_all)

    ours = {
        "1 process" if number == 1 else f"{number} processes": rate_of("PPOClip", number, 1, ROLLOUTS)
        for number in doubled_up_to(most)
    }
    return ours | {"SB3's PPO": rate_of("PPO", 1, most, max(1, ROLLOUTS // most))}


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=5)
    parser.add_argument("--processes", type=count, default=2, help="most processes (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Measure and print the table."""

    def measure(name: str) -> dict[str, list[float]]:
        return in_turn(runs_in(WORKLOADS[name], options.processes), options.pairs)

    print("\n".join(rates_table(measured(options, measure, of_each=["1 process"])["runs"])))
    return 0


def rates_table(rates: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return a table of the steps per second, and of their ratio to those of one process."""
    lines = ["| workload | | steps/s | over 1 process |", "|---|---|---|---|"]
    for name, of_runs in rates.items():
        alone = np.array(of_runs["1 process"])
        for label, values in of_runs.items():
            lines.append(f"| {name} | {label} | {np.median(values):.0f} | {quartiles(np.array(values) / alone)} |")
    return lines


if __name__ == "__main__":
    measure_here(*sys.argv[1:])
