"""Evaluate the trained agents that the repository contains, and compare their scores with those on their cards."""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import sqrt
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
import torch as th
import yaml
from PIL import Image
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

import examples.environments  # noqa: F401
from benchmarks.measuring import add_names, count
from sb3_ppo_variants.recipes import EVALUATION_SEED, Recipe, entries_of, evaluate, load, recipe, select, train

AGENTS, GALLERY = Path("results/agents"), Path("docs/reports/gallery")
# The environments of the agents, with the seeds of their training.
ENVIRONMENTS = {
    "CartPole-v1": 1,
    "Pendulum-v1": 1,
    "LunarLander-v3": 1,
    "MoveOrKick-v0": 1,
    "BreakoutNoFrameskip-v4": 0,
    "PongNoFrameskip-v4": 0,
}
ALGORITHM, EPISODES = "ppo_clip", 100
# The means of two evaluations of the same agent differ by less than this many standard errors of one.
STANDARD_ERRORS = 3
MODEL, CARD = "model.zip", "README.md"
# A clip shows every other of these steps, each for so many milliseconds, in this many colours and pixels of height.
CLIP_STEPS, CLIP_PAUSE, CLIP_COLORS, CLIP_HEIGHT = 600, 40, 16, 210
# The line of a card before and after its metadata.
FENCE = "---\n"
TEXT = """\
# **{algorithm}** agent playing **{env_id}**

The recipe of [sb3_ppo_variants](https://github.com/sb3-ppo-variants/sb3_ppo_variants) has trained this agent for
{timesteps:,} steps, with seed {seed}. Its score, {score}, is the mean return over {episodes} new episodes with the
{policy} policy, ± their standard deviation. The file has no state of the optimizer: further training begins
with a new one.

## Usage

```python
from sb3_ppo_variants import {algorithm}

model = {algorithm}.load("{folder}/{model}", weights_only=True)
```

In a clone, `python -m benchmarks agents --envs {env_id}` evaluates it again, and fails if the mean return
differs by more than {errors} standard errors. With `--train`, the command trains it anew and writes this card.

## Hyperparameters

```yaml
{hyperparameters}```
"""


class Score(NamedTuple):
    """The mean of the returns of ``EPISODES`` episodes, and their standard deviation."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.std:.2f}"

    def agrees_with(self, other: "Score") -> bool:
        """Return whether this can be another evaluation of the same agent.

        Processors round differently, which may change the course of an episode, and thus each of them. The difference
        of two means has a standard deviation of 1.4 standard errors.
        """
        # A card has two decimals.
        return abs(self.mean - other.mean) <= STANDARD_ERRORS * other.std / sqrt(EPISODES) + 0.005


def score_of(made: Recipe, folder: Path) -> Score:
    """Evaluate the agent in a folder."""
    returns = evaluate(made, folder, EPISODES, weights_only=made.normalize is None)
    return Score(float(returns.mean()), float(returns.std()))


def published(folder: Path) -> Score:
    """Return the score on the card in a folder."""
    _, metadata, _ = (folder / CARD).read_text().split(FENCE, maxsplit=2)
    (entry,) = yaml.safe_load(metadata)["model-index"]
    mean, _, std = entry["results"][0]["metrics"][0]["value"].partition(" +/- ")
    return Score(float(mean), float(std))


def card(env_id: str, timesteps: int, score: Score) -> str:
    """Return the card of an agent, in Markdown, with the metadata that ``push_to_hub`` of the RL Zoo writes."""
    made, task = recipe(ALGORITHM, env_id), "reinforcement-learning"
    algorithm = made.algorithm.__name__
    text = TEXT.format(
        algorithm=algorithm, env_id=env_id, timesteps=timesteps, seed=ENVIRONMENTS[env_id], score=score,
        episodes=EPISODES, policy="deterministic" if made.is_deterministic else "stochastic",
        errors=STANDARD_ERRORS, folder=(AGENTS / env_id).as_posix(), model=MODEL,
        hyperparameters=yaml.safe_dump(select(entries_of(ALGORITHM), env_id), sort_keys=False),
    )  # fmt: skip
    result = {
        "task": {"type": task, "name": task},
        "dataset": {"name": env_id, "type": env_id},
        "metrics": [{"type": "mean_reward", "value": f"{score.mean:.2f} +/- {score.std:.2f}", "name": "mean_reward"}],
    }
    described = {
        "library_name": "stable-baselines3",
        "license": "mit",
        "tags": [env_id, "deep-reinforcement-learning", task, "stable-baselines3"],
        "model-index": [{"name": algorithm, "results": [result]}],
    }
    return f"{FENCE}{yaml.safe_dump(described, sort_keys=False)}{FENCE}\n{text}"


def make(env_id: str, folder: Path, timesteps: int | None = None) -> None:
    """Train an agent and publish it in a folder.

    :param timesteps: environment steps; ``None`` uses the recipe's
    """
    with tempfile.TemporaryDirectory() as trained:
        train(recipe(ALGORITHM, env_id), trained, ENVIRONMENTS[env_id], timesteps)
        publish(env_id, Path(trained), folder)


def publish(env_id: str, trained: Path, folder: Path) -> Score:
    """Write the agent in a folder to another, with its card, and return its score."""
    made = recipe(ALGORITHM, env_id)
    model = cast(OnPolicyAlgorithm, made.algorithm.load(trained / MODEL))
    # Adam's moments would be two thirds of the file.
    model.policy.optimizer.state.clear()
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / MODEL)
    score = score_of(made, folder)
    (folder / CARD).write_text(card(env_id, model.num_timesteps, score))
    return score


def frames(made: Recipe, folder: Path) -> Iterator[np.ndarray]:
    """Let the agent in a folder act, and yield a picture of each step, of shape (height, width, 3)."""
    shown = replace(made, env_kwargs={**(made.env_kwargs or {}), "render_mode": "rgb_array"})
    model, env = load(shown, folder, EVALUATION_SEED, weights_only=True)
    observations = env.reset()
    th.manual_seed(EVALUATION_SEED)
    try:
        while True:
            picture = env.render()
            assert picture is not None
            yield picture
            actions, _ = model.predict(observations, deterministic=made.is_deterministic)  # type: ignore[arg-type]
            observations, *_ = env.step(actions)
    finally:
        env.close()


def film(env_id: str, folder: Path, file: Path) -> None:
    """Show the agent in a folder in an animated GIF."""
    pictures = islice(frames(recipe(ALGORITHM, env_id), folder), 0, CLIP_STEPS, 2)
    images = [Image.fromarray(picture) for picture in pictures]
    file.parent.mkdir(parents=True, exist_ok=True)
    size = (images[0].width * CLIP_HEIGHT // images[0].height, CLIP_HEIGHT)
    first, *others = [image.resize(size).quantize(CLIP_COLORS) for image in images]
    first.save(file, save_all=True, append_images=others, duration=CLIP_PAUSE, loop=0)


def overview(agents: Path = AGENTS) -> str:
    """Return a table of the agents in a folder and their published scores."""
    rows = [
        {"agent": f"`{(AGENTS / folder.name).as_posix()}`", "score": str(published(folder)), "kB": f"{size / 1000:.0f}"}
        for folder in (agents / env_id for env_id in ENVIRONMENTS)
        if (folder / CARD).exists()
        for size in [(folder / MODEL).stat().st_size]
    ]
    return pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True)


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_names(parser, "--envs", ENVIRONMENTS, list(ENVIRONMENTS))
    parser.add_argument("--agents", type=Path, default=AGENTS, help="folder of the agents (default: %(default)s)")
    parser.add_argument("--train", action="store_true", help="train the agents and write their cards first")
    parser.add_argument("--timesteps", type=count, help="environment steps to train for (default: the recipe's)")
    parser.add_argument(
        "--film", type=Path, nargs="?", const=GALLERY, metavar="FOLDER",
        help="show the agents in animated GIFs instead (default folder: %(const)s)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Evaluate each agent, print its score beside the published one, and return 1 if one is another."""
    th.set_num_threads(1)
    differ = False
    for env_id in options.envs:
        folder = options.agents / env_id
        if options.train:
            make(env_id, folder, options.timesteps)
        if options.film is not None:
            film(env_id, folder, options.film / f"{env_id}.gif")
            continue
        score, expected = score_of(recipe(ALGORITHM, env_id), folder), published(folder)
        agrees = score.agrees_with(expected)
        differ |= not agrees
        print(f"{env_id}: {score}, published: {expected}{'' if agrees else ' DIFFERENT'}")
    return int(differ)
