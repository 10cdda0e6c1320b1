"""PPOAdaptiveKL on CartPole-v1 before training (left) and after (right), as an animated GIF."""

import argparse

import gymnasium as gym
import numpy as np
from PIL import Image
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppo_variants import PPOAdaptiveKL


def play(model: PPOAdaptiveKL, steps: int) -> list[np.ndarray]:
    """Play for a number of steps and return every other frame, each of shape (height, width, 3)."""
    env = gym.wrappers.Autoreset(gym.make("CartPole-v1", render_mode="rgb_array"))
    observation, _ = env.reset(seed=3)
    pictures = []
    for _ in range(steps):
        pictures.append(np.asarray(env.render()))
        observation = env.step(model.predict(observation, deterministic=True)[0])[0]
    return pictures[::2]


def main(timesteps: int, steps: int, out: str) -> None:
    env = make_vec_env("CartPole-v1", n_envs=8, seed=1)
    model = PPOAdaptiveKL("MlpPolicy", env, n_steps=128, desired_kl=0.01, seed=1)
    before = play(model, steps)
    pairs = zip(before, play(model.learn(timesteps, progress_bar=True), steps), strict=True)
    frames = [Image.fromarray(np.hstack(pair)[100:]).resize((600, 150)).quantize(16) for pair in pairs]
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=40, loop=0)
    print(f"{len(frames)} frames in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", default="cartpole.gif")
    main(**vars(parser.parse_args()))
