"""The program of each process in the scaling benchmark: ``torchrun -m benchmarks.scaling_run``."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch as th
import torch.distributed as dist
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppo_variants.processes import current, init_processes
from sb3_ppo_variants.variants import PPOClip

REPETITIONS = 300


def rate(algorithm: str, env_id: str, n_envs: int, n_steps: int, batch_size: int, rollouts: int) -> float:
    """Measure the steps per second of all processes, over rollouts and updates after one to warm up."""
    cls = {"PPO": PPO, "PPOClip": PPOClip}[algorithm]
    env = make_vec_env(env_id, n_envs, seed=0)
    model = cls("MlpPolicy", env, n_steps=n_steps, batch_size=batch_size, seed=0, device="cpu")
    model.learn(1)
    before, start = model.num_timesteps, time.perf_counter()
    model.learn(rollouts * before, reset_num_timesteps=False)
    return (model.num_timesteps - before) / (time.perf_counter() - start)


def seconds_to_average(size: int) -> float:
    """Return the median of the seconds that it takes to average ``size`` floats over all processes."""
    processes, vector = current("auto"), th.zeros(size)
    seconds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        processes.average(vector)
        seconds.append(time.perf_counter() - start)
    return float(th.tensor(seconds).median())


class Curve(BaseCallback):
    """Records the mean return of the last 100 episodes of all processes before each rollout, and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []

    def _on_rollout_start(self) -> None:
        self._record()

    def _on_training_end(self) -> None:
        self._record()

    def _record(self) -> None:
        returns = [info["r"] for info in self.model.ep_info_buffer or ()]
        if returns:
            self.points.append((self.num_timesteps, round(float(safe_mean(returns)), 2)))

    def _on_step(self) -> bool:
        return True


def learn(
    env_id: str, n_envs: int, n_steps: int, batch_size: int, timesteps: int, seed: int
) -> list[tuple[int, float]]:
    """Train with normalised observations and rewards, and return the learning curve."""
    env = VecNormalize(make_vec_env(env_id, n_envs, seed=seed))
    model = PPOClip("MlpPolicy", env, n_steps=n_steps, batch_size=batch_size, seed=seed, device="cpu")
    curve = Curve()
    model.learn(timesteps, callback=curve)
    return curve.points


MEASURES: dict[str, Callable[..., Any]] = {"average": seconds_to_average, "learn": learn, "rate": rate}


def main(what: str, *arguments: str) -> None:
    """Measure, and print the result on rank 0."""
    th.set_num_threads(1)
    together = init_processes()
    measured = MEASURES[what](*(int(argument) if argument.isdigit() else argument for argument in arguments))
    if not together or dist.get_rank() == 0:
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
