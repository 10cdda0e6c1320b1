"""What each process of the scaling benchmark runs: ``torchrun -m sb3_ppo_variants.benchmark.scaling_run``."""

import json
import sys
import time

import torch as th
import torch.distributed as dist
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppo_variants.processes import current, init_processes
from sb3_ppo_variants.variants import PPOClip

REPETITIONS = 300


def rate(algorithm: str, env_id: str, n_envs: int, n_steps: int) -> float:
    """Steps per second of all processes, over two rollouts with their updates after one to warm up."""
    cls = {"PPO": PPO, "PPOClip": PPOClip}[algorithm]
    model = cls("MlpPolicy", make_vec_env(env_id, n_envs, seed=0), n_steps=n_steps, seed=0, device="cpu")
    model.learn(1)
    before, start = model.num_timesteps, time.perf_counter()
    model.learn(2 * before, reset_num_timesteps=False)
    return (model.num_timesteps - before) / (time.perf_counter() - start)


def seconds_to_average(size: int) -> float:
    """The median of seconds that the mean of so many floats over all processes takes."""
    processes, vector = current("auto"), th.zeros(size)
    seconds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        processes.average(vector)
        seconds.append(time.perf_counter() - start)
    return float(th.tensor(seconds).median())


def main(what: str, *arguments: str) -> None:
    """Measure, and have rank 0 print it."""
    th.set_num_threads(1)
    together = init_processes()
    measured = (
        seconds_to_average(int(arguments[0]))
        if what == "average"
        else rate(arguments[0], arguments[1], int(arguments[2]), int(arguments[3]))
    )
    if not together or dist.get_rank() == 0:
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
