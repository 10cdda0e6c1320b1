"""Train the variants on small tasks and check that they learn."""

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule

from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.variants import PPOAdaptiveKL, PPOClip, PPOFixedKL

EVALUATION_EPISODES = 100
EVALUATION_SEED = 10_000


@dataclass(frozen=True)
class Task:
    """An environment, how to train on it and the mean reward to reach."""

    env: str
    n_envs: int
    timesteps: int
    seeds: int
    bar: float
    settings: dict[str, Any]


# Settings after RL Zoo's for PPO, except that the step size is annealed in both, so that the last policy is as good as
# those before it, and that the clip range is left out, so that each variant has its own default.
TASKS = [
    Task(
        "CartPole-v1",
        n_envs=8,
        timesteps=100_000,
        seeds=5,
        bar=475,
        settings={
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": LinearSchedule(1e-3, 0.0, 1.0),
        },
    ),
    Task(
        "Pendulum-v1",
        n_envs=4,
        timesteps=200_000,
        seeds=3,
        bar=-250,
        settings={
            "n_steps": 1024,
            "gamma": 0.9,
            "learning_rate": LinearSchedule(1e-3, 0.0, 1.0),
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    ),
]
VARIANTS: list[type[PPOBase]] = [PPOClip, PPOAdaptiveKL, PPOFixedKL]


def score(variant: type[PPOBase], task: Task, seed: int) -> float:
    """Train once and return the mean reward of the deterministic policy over new episodes."""
    th.set_num_threads(1)
    env = make_vec_env(task.env, n_envs=task.n_envs, seed=seed)
    model = variant("MlpPolicy", env, seed=seed, device="cpu", **task.settings)
    model.learn(task.timesteps)
    evaluation = make_vec_env(task.env, n_envs=task.n_envs, seed=EVALUATION_SEED)
    mean, _ = evaluate_policy(model, evaluation, n_eval_episodes=EVALUATION_EPISODES)
    return float(np.mean(mean))


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    envs = [task.env for task in TASKS]
    parser.add_argument("--envs", nargs="+", choices=envs, default=envs, metavar="ID", help=f"of {', '.join(envs)}")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: %(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train all variants on all tasks and print a table.

    :return: 0 if every run reaches its bar, else 1
    """
    from joblib import Parallel, delayed

    tasks = [task for task in TASKS if task.env in options.envs]
    plan = [(variant, task, seed) for task in tasks for variant in VARIANTS for seed in range(task.seeds)]
    scores = Parallel(n_jobs=options.jobs, verbose=10)(delayed(score)(*settings) for settings in plan)
    print("| environment | steps | variant | mean reward, one seed each | to reach |\n|---|---|---|---|---|")
    missed = False
    for task in tasks:
        for variant in VARIANTS:
            rewards = [s for s, (v, t, _) in zip(scores, plan, strict=True) if v is variant and t is task]
            missed |= min(rewards) < task.bar
            listed = ", ".join(f"{reward:.1f}" for reward in rewards)
            print(f"| {task.env} | {task.timesteps} | {variant.__name__} | {listed} | {task.bar:g} |")
    return int(missed)
