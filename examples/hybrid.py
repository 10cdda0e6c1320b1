"""Learn to move to a ball and to kick it: an action is a choice, with an argument for each outcome.

python examples/hybrid.py --timesteps 40000
"""

import argparse

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppo_variants import PPOClip

ENV = "examples.environments:MoveOrKick-v0"


def main(timesteps: int) -> None:
    env = make_vec_env(ENV, n_envs=8, seed=1)
    parts = {
        # Where to move counts where the choice is 0, and where to kick where it is 1.
        "only_if": {"move": ("choice", 0), "kick": ("choice", 1)},
        # The choice explores because of its entropy bonus, and its arguments with small noise from the beginning.
        "entropy_weights": {"move": 0.0, "kick": 0.0},
        "log_std_init": -1.0,
    }
    model = PPOClip(
        "MlpPolicy", env, 3e-3, n_steps=128, batch_size=256, gamma=0.9, ent_coef=0.01, seed=1, policy_kwargs=parts
    )
    model.learn(timesteps, progress_bar=True)
    mean, _ = evaluate_policy(model, make_vec_env(ENV, n_envs=8, seed=2), n_eval_episodes=100)
    print(f"mean return after {timesteps} steps: {mean:.2f}, at best 1.45 on average")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=40_000)
    main(**vars(parser.parse_args()))
