"""PPOAdaptiveKL on CartPole-v1 before training (left) and after (right), as an animated GIF.

python examples/gif.py --out docs/quickstart.gif
"""

import argparse
from pathlib import Path

import gymnasium as gym
import numpy as np
from PIL import Image
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppo_variants import PPOAdaptiveKL


def frames(model: PPOAdaptiveKL, steps: int) -> list[np.ndarray]:
    """Pictures of episodes played one after the other, each of shape (height, width, 3)."""
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    observation, _ = env.reset(seed=3)
    pictures = []
    for _ in range(steps):
        pictures.append(np.asarray(env.render()))
        action, _ = model.predict(observation, deterministic=True)
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    return pictures


def main(timesteps: int, steps: int, out: Path) -> None:
    env = make_vec_env("CartPole-v1", n_envs=8, seed=1)
    model = PPOAdaptiveKL("MlpPolicy", env, n_steps=128, desired_kl=0.01, seed=1)
    before = frames(model, steps)
    after = frames(model.learn(timesteps), steps)
    # 50 steps are a second; showing every other one halves the size of the file, and so does the empty sky.
    side_by_side = [np.hstack(pair)[100:] for pair in zip(before[::2], after[::2], strict=True)]
    pictures = [Image.fromarray(picture).resize((600, 150)).quantize(16) for picture in side_by_side]
    pictures[0].save(out, save_all=True, append_images=pictures[1:], duration=40, loop=0)
    print(f"{len(pictures)} frames in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("cartpole.gif"))
    main(**vars(parser.parse_args()))
