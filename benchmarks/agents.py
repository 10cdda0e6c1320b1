"""Evaluate the trained agents that the repository contains, and compare their scores with those on their cards."""

import argparse
import tempfile
from math import sqrt
from pathlib import Path
from shutil import copy
from typing import NamedTuple

import pandas as pd
import torch as th
import yaml

import examples.environments  # noqa: F401
from benchmarks.measuring import add_names, count
from sb3_ppo_variants.recipes import Recipe, entries_of, evaluate, recipe, select, train

AGENTS = Path("results/agents")
ENVIRONMENTS = ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "MoveOrKick-v0"]
ALGORITHM, SEED, EPISODES = "ppo_clip", 1, 100
MODEL, CARD = "model.zip", "README.md"
# The line of a card before and after its metadata.
FENCE = "---\n"
TEXT = """\
# **{algorithm}** agent playing **{env_id}**

The recipe of [sb3_ppo_variants](https://github.com/sb3-ppo-variants/sb3_ppo_variants) has trained this agent for
{timesteps:,} steps, with seed {seed}. Its score, {score}, is the mean return over {episodes} new episodes with the
deterministic policy, ± their standard deviation.

## Usage

```python
from sb3_ppo_variants import {algorithm}

model = {algorithm}.load("{folder}/{model}", weights_only=True)
```

In a clone, `python -m benchmarks agents --envs {env_id}` evaluates it again, and fails if the mean return
differs by more than a standard error. With `--train`, the command trains it anew and writes this card.

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
        """Return whether the means of two evaluations of the same agent differ by at most a standard error.

        Processors round differently, which may change the course of an episode.
        """
        # A card has two decimals.
        return abs(self.mean - other.mean) <= other.std / sqrt(EPISODES) + 0.005


def score_of(made: Recipe, folder: Path) -> Score:
    """Evaluate the agent in a folder."""
    returns = evaluate(made, folder, EPISODES, weights_only=True)
    return Score(float(returns.mean()), float(returns.std()))


def published(folder: Path) -> Score:
    """Return the score on the card in a folder."""
    _, metadata, _ = (folder / CARD).read_text().split(FENCE, maxsplit=2)
    (entry,) = yaml.safe_load(metadata)["model-index"]
    mean, _, std = entry["results"][0]["metrics"][0]["value"].partition(" +/- ")
    return Score(float(mean), float(std))


def card(env_id: str, timesteps: int, score: Score) -> str:
    """Return the card of an agent, in Markdown, with the metadata that ``push_to_hub`` of the RL Zoo writes."""
    algorithm, task = recipe(ALGORITHM, env_id).algorithm.__name__, "reinforcement-learning"
    text = TEXT.format(
        algorithm=algorithm, env_id=env_id, timesteps=timesteps, seed=SEED, score=score, episodes=EPISODES,
        folder=(AGENTS / env_id).as_posix(), model=MODEL,
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
    """Train an agent, evaluate it, and write both its model and its card into a folder.

    :param timesteps: environment steps; ``None`` uses the recipe's
    """
    made = recipe(ALGORITHM, env_id)
    with tempfile.TemporaryDirectory() as trained:
        model = train(made, trained, SEED, timesteps)
        score = score_of(made, Path(trained))
        folder.mkdir(parents=True, exist_ok=True)
        copy(Path(trained, MODEL), folder)
    (folder / CARD).write_text(card(env_id, model.num_timesteps, score))


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
    add_names(parser, "--envs", ENVIRONMENTS, ENVIRONMENTS)
    parser.add_argument("--agents", type=Path, default=AGENTS, help="folder of the agents (default: %(default)s)")
    parser.add_argument("--train", action="store_true", help="train the agents and write their cards first")
    parser.add_argument("--timesteps", type=count, help="environment steps to train for (default: the recipe's)")


def run(options: argparse.Namespace) -> int:
    """Evaluate each agent, print its score beside the published one, and return 1 if one is another."""
    th.set_num_threads(1)
    differ = False
    for env_id in options.envs:
        folder = options.agents / env_id
        if options.train:
            make(env_id, folder, options.timesteps)
        score, expected = score_of(recipe(ALGORITHM, env_id), folder), published(folder)
        agrees = score.agrees_with(expected)
        differ |= not agrees
        print(f"{env_id}: {score}, published: {expected}{'' if agrees else ' DIFFERENT'}")
    return int(differ)
