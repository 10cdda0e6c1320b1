"""Train PPOClip with the recipes, and record the trained agents for the gallery, each as a small animated GIF."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch as th

from benchmarks.gallery import ENVIRONMENTS, GALLERY
from benchmarks.measuring import Count, add_names
from sb3_ppo_variants.arguments.commandline import whole_number
from sb3_ppo_variants.recipes import recipe, train
from sb3_ppo_variants.recipes.training import EVALUATION_SEED, load

# They train within a minute.
QUICK = ["CartPole-v1", "Pendulum-v1"]
# Every third frame of the first steps, in few pixels and colours, so that a file stays below 300 kB.
STEPS = 300
EVERY = 3
HEIGHT = 160
COLORS = 16
MILLISECONDS = 60


def film(env_id: str, seed: int, timesteps: int | None = None) -> list[np.ndarray]:
    """Train, and return pictures of the trained agent in new episodes, each of shape ``(height, width, 3)``.

    :param timesteps: environment steps; ``None`` uses the recipe's
    """
    th.set_num_threads(1)
    made = recipe("ppo_clip", env_id)
    with tempfile.TemporaryDirectory() as folder:
        train(made, folder, seed, timesteps)
        model, env = load(made, folder, EVALUATION_SEED)
    observations = env.reset()
    pictures = []
    for step in range(STEPS):
        if step % EVERY == 0:
            picture = env.render("rgb_array")
            assert picture is not None
            pictures.append(picture.copy())
        actions, _ = model.predict(observations, deterministic=not made.is_atari)  # type: ignore[arg-type]
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
    add_names(parser, "--envs", ENVIRONMENTS, QUICK)
    parser.add_argument("--seed", type=whole_number, default=1, help="seed (default: %(default)s)")
    parser.add_argument("--timesteps", action=Count, help="environment steps of a run (default: the recipe's)")
    parser.add_argument("--gallery", type=Path, default=GALLERY, help="folder for the files (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Train and record in each environment."""
    for env_id in options.envs:
        file = options.gallery / f"{env_id}.gif"
        write(film(env_id, options.seed, options.timesteps), file)
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
    return 0
