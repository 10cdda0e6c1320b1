"""The program of each process in the scaling benchmark: ``torchrun -m benchmarks.scaling_run``."""

import json
import sys
import time

import torch as th
import torch.distributed as dist
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppo_variants.processes import init_processes
from sb3_ppo_variants.variants import PPOClip


def rate(algorithm: str, env_id: str, n_envs: int, n_steps: int, batch_size: int, rollouts: int) -> float:
    """Measure the steps per second of all processes, over rollouts and updates after one to warm up."""
    cls = {"PPO": PPO, "PPOClip": PPOClip}[algorithm]
    env = make_vec_env(env_id, n_envs, seed=0)
    model = cls("MlpPolicy", env, n_steps=n_steps, batch_size=batch_size, seed=0, device="cpu")
    model.learn(1)
    before, start = model.num_timesteps, time.perf_counter()
    model.learn(rollouts * before, reset_num_timesteps=False)
    return (model.num_timesteps - before) / (time.perf_counter() - start)


def main(algorithm: str, env_id: str, *numbers: str) -> None:
    """Measure, and print the result on rank 0."""
    th.set_num_threads(1)
    together = init_processes()
    measured = rate(algorithm, env_id, *map(int, numbers))
    if not together or dist.get_rank() == 0:
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
