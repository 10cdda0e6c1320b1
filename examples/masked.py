"""Mask finished jobs in a small scheduling task, with an adaptive KL penalty instead of clipping.

python examples/masked.py --timesteps 100000
"""

import argparse
from typing import Any

import numpy as np
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppo_variants import PPOAdaptiveKL

ENV = "examples.environments:Scheduling-v0"


def cost(model: Any) -> float:
    """Return the mean cost of the model's schedules for jobs that it was not trained on."""
    returns, _ = evaluate_policy(model, make_vec_env(ENV, seed=2), 100, return_episode_rewards=True)
    return -float(np.mean(returns))


def main(timesteps: int) -> None:
    env = make_vec_env(ENV, n_envs=8, seed=1)
    model = PPOAdaptiveKL(
        "MaskableMlpPolicy", env, 1e-3, n_steps=128, batch_size=256, gamma=1.0, desired_kl=0.01, seed=1
    )
    before = cost(model)
    model.learn(timesteps, progress_bar=True)
    print(f"mean cost of a schedule before training {before:.3f}, after {timesteps} steps {cost(model):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=100_000)
    main(**vars(parser.parse_args()))
