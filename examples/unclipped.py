"""PPOUnclipped and PPOClip on Pendulum-v1: without clipping or a penalty, an update goes further."""

import argparse

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppo_variants import PPOClip, PPOUnclipped


def main(timesteps: int) -> None:
    for variant in (PPOClip, PPOUnclipped):
        env = make_vec_env("Pendulum-v1", n_envs=4, seed=1)
        model = variant("MlpPolicy", env, learning_rate=1e-3, n_steps=256, gamma=0.9, seed=1, device="cpu")
        model.learn(timesteps, progress_bar=True)
        reward, _ = evaluate_policy(model, env, n_eval_episodes=20)
        kl = model.logger.name_to_value["train/kl"]
        print(f"{variant.__name__:13}  KL of the last update {kl:.4f}  reward {np.mean(reward):.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=50_000)
    main(**vars(parser.parse_args()))
