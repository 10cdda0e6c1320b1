"""PPOFixedKL on CartPole-v1 with the coefficients of the paper's Table 1: the KL of an update falls as beta grows."""

import argparse

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppo_variants import PPOFixedKL


def main(timesteps: int) -> None:
    for kl_coef in (0.3, 1.0, 3.0, 10.0):
        env = make_vec_env("CartPole-v1", n_envs=8, seed=1)
        model = PPOFixedKL("MlpPolicy", env, n_steps=128, kl_coef=kl_coef, seed=1, device="cpu")
        model.learn(timesteps, progress_bar=True)
        kl = model.logger.name_to_value["train/kl"]
        reward, _ = evaluate_policy(model, env, n_eval_episodes=10)
        print(f"beta {kl_coef:4g}  KL of the last update {kl:.5f}  reward {np.mean(reward):.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=20_000)
    main(**vars(parser.parse_args()))
