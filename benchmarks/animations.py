"""Record the published agents in motion for the gallery, each as a small animated GIF."""

import argparse
from pathlib import Path

import numpy as np
import torch as th

from benchmarks.agents import AGENTS, ALGORITHM
from benchmarks.gallery import GALLERY
from benchmarks.measuring import add_names
from sb3_ppo_variants.recipes import recipe
from sb3_ppo_variants.recipes.training import EVALUATION_SEED, load

# The published agents whose environments draw pictures.
ENVIRONMENTS = ["CartPole-v1", "Pendulum-v1", "LunarLander-v3"]
# Every third frame of the first steps, in few pixels and colours, so that a file stays below 300 kB.
STEPS = 300
EVERY = 3
HEIGHT = 160
COLORS = 16
MILLISECONDS = 60


def film(env_id: str, folder: Path) -> list[np.ndarray]:
    """Return pictures of the agent in a folder, in new episodes, each of shape ``(height, width, 3)``."""
    th.set_num_threads(1)
    model, env = load(recipe(ALGORITHM, env_id), folder, EVALUATION_SEED, weights_only=True)
    observations = env.reset()
    pictures = []
    for step in range(STEPS):
        if step % EVERY == 0:
            picture = env.render("rgb_array")
            assert picture is not None
            pictures.append(picture.copy())
        actions, _ = model.predict(observations, deterministic=True)  # type: ignore[arg-type]
        observations, *_ = env.step(actions)
    env.close()
    return pictures


def write(pictures: list[np.ndarray], file: Path) -> None:
    """Write pictures as an animated GIF that repeats."""
    from PIL import Image

    height, width = pictures[0].shape[:2]
    size = (round(width * HEIGHT / height), HEIGHT)
    frames = [Image.fromarray(picture).resize(size).quantize(COLORS) for picture in pictures]
    file.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=MILLISECONDS, loop=0)


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--envs", ENVIRONMENTS, ENVIRONMENTS)
    parser.add_argument("--agents", type=Path, default=AGENTS, help="folder of the agents (default: %(default)s)")
    parser.add_argument("--gallery", type=Path, default=GALLERY, help="folder for the files (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Record the agent of each environment."""
    for env_id in options.envs:
        file = options.gallery / f"{env_id}.gif"
        write(film(env_id, options.agents / env_id), file)
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
    return 0
