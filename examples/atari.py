"""PPOClip on Breakout with the paper's Atari setting (Table 5), where alpha goes from 1 to 0 over the run."""

import argparse

import ale_py
import gymnasium as gym
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_ppo_variants import PPOClip


def main(timesteps: int, n_envs: int) -> None:
    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=n_envs, seed=1), n_stack=4)
    model = PPOClip(
        "CnnPolicy",
        env,
        learning_rate=LinearSchedule(2.5e-4, 0.0, 1.0),  # 2.5e-4 alpha
        clip_range=LinearSchedule(0.1, 0.0, 1.0),  # 0.1 alpha
        n_steps=128,
        batch_size=32 * n_envs,
        n_epochs=3,
        vf_coef=1.0,
        ent_coef=0.01,
        verbose=1,
        seed=1,
    )
    model.learn(timesteps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=10_000_000)
    parser.add_argument("--n-envs", type=int, default=8)
    main(**vars(parser.parse_args()))
