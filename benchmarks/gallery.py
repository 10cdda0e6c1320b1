"""Train PPOClip with the recipes and draw its learning curves."""

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn
import torch as th
from joblib import Parallel, delayed
from matplotlib.figure import Figure

from benchmarks import agents
from benchmarks.measuring import add_names, count
from benchmarks.published import CLEANRL, EVALUATIONS, PAPER, RL_ZOO3
from benchmarks.workloads import BREAKOUT
from sb3_ppo_variants.arguments import RULES
from sb3_ppo_variants.commandline import whole_number
from sb3_ppo_variants.compare import records as of_compare
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes import Episodes, Recipe, recipe, train

RECORDS = Path("results/gallery.jsonl")
# The mean return to reach in each environment; None where the recipe takes hours.
ENVIRONMENTS: dict[str, float | None] = {
    "CartPole-v1": 500,
    "Pendulum-v1": -180,
    "LunarLander-v3": 220,
    "BipedalWalker-v3": 250,
    "HalfCheetah-v5": 3000,
    "Hopper-v5": 2400,
    "Walker2d-v5": 2700,
    "Humanoid-v5": None,
    "BreakoutNoFrameskip-v4": None,
    "PongNoFrameskip-v4": None,
}
# What the table says about the results in an environment, and what its section does.
IN_SHORT = {"Hopper-v5": " ([most agents stand](#hopper-v5), with SB3's `PPO` too)"}
_HOPPER, _WALKER2D = EVALUATIONS["Hopper-v5"], EVALUATIONS["Walker2d-v5"]
NOTES = {
    "Hopper-v5": f"""\
No run reaches what rl_zoo3 publishes, and with this recipe SB3's `PPO` does not either: its mean over
[three seeds](../hopper/report.md) is 676, that of `PPOClip` 841. Three seeds are too few to tell the two apart. Most
agents learn to stand, for a reward of 1 per step, and go on standing.

rl_zoo3's score is that of one run with the same hyperparameters, and [its evaluations][zoo-hopper], every 25,000 steps,
tell the same story. Of the first {len(_HOPPER[:-5])} mean returns, none is more than {max(_HOPPER[:-5])}; the last five
are {", ".join(map(str, _HOPPER[-5:]))}. A user of rl_zoo3 [reports][zoo-issue] five seeds that stood. So the published
agent learned like ours for most of its run, in version 3 of the environment, and left its stand at the end. How often
that happens, single runs cannot tell.

The cause is the discount factor: with 0.99 instead of 0.999, [agents learn to hop](../../results/index.md#hopper).

[zoo-hopper]: https://github.com/DLR-RM/rl-trained-agents/tree/master/ppo/Hopper-v3_1
[zoo-issue]: https://github.com/DLR-RM/rl-baselines3-zoo/issues/376""",
    "Walker2d-v5": f"""\
rl_zoo3's score is that of one model. In the last tenth of [its run][zoo-walker2d], mean returns of 20 episodes went
from {min(_WALKER2D)} to {max(_WALKER2D)}, so a single evaluation says little about a recipe here.

[zoo-walker2d]: https://github.com/DLR-RM/rl-trained-agents/tree/master/ppo/Walker2d-v3_1""",
}
# What both Atari games cost, in the section of Breakout, in which the speed was measured.
SPEED = Path("results/throughput-breakout.json")
ATARI = """\
These commands trained one agent in each of the two Atari games. Both runs were interrupted and resumed four times.

```bash
python -m sb3_ppo_variants compare --config atari-demo --algos ppo_clip --seeds 1 --jobs 2 \\
    --resume-every 250000 --checkpoints --out runs/atari
python -m benchmarks gallery --runs runs/atari
```

With this recipe and one thread, `PPOClip` trains {ours:.0f} steps a second in Breakout and SB3's `PPO` {theirs:.0f}, in
[alternating runs](../speed/report.md) on the same machine.

One run of each cannot tell how much of the difference from rl_zoo3's scores is chance."""
# A curve has the mean return of the episodes that ended in each of this many equal spans of steps.
SPANS = 100
INTRODUCTION = f"""# What the recipes reach

We trained `PPOClip` with the recipes in `sb3_ppo_variants/recipes`, on one CPU thread. A score is the mean return of
the saved model over {agents.EPISODES} new episodes, with the deterministic policy (in Atari games, the stochastic
one). The curves show the returns during training: each seed in grey, their mean in blue. `make gallery` makes the runs
that have no record in `results/gallery.jsonl` yet, and writes this page from the records. The
[files](#files-of-trained-agents) of the agents that are shown in motion are in the repository.

The table has the mean of all seeds (± their standard deviation) beside what [rl_zoo3][rl_zoo3], [CleanRL][cleanrl] and
Table 6 of the paper publish, with the version of the environment and the number of steps that they used. rl_zoo3 has
the hyperparameters of our recipes, except in Pendulum, and evaluates a single run (± standard deviation over episodes).
CleanRL has one set of hyperparameters for MuJoCo and one for Atari games, and takes the returns during training. So
does the paper, over the last 100 episodes of three runs.

[rl_zoo3]: https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md
[cleanrl]: https://docs.cleanrl.dev/rl-algorithms/ppo
"""
FILES = f"""## Files of trained agents

These agents are in the repository, each with a card. `python -m benchmarks agents` evaluates them again over
{agents.EPISODES} new episodes, and fails if a mean return is more than {agents.STANDARD_ERRORS} standard errors from
the published one; with `--film`, it makes the clips. `load(..., weights_only=True)` reads the files without unpickling
anything.
"""


def record(env_id: str, seed: int, timesteps: int | None) -> dict[str, Any]:
    """Train and evaluate once, and return the record."""
    th.set_num_threads(1)
    made, episodes = recipe("ppo_clip", env_id), Episodes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # CPU time, which does not depend on what else is running.
        start = time.process_time()
        model = train(made, folder, seed, timesteps, episodes)
        seconds = time.process_time() - start
        score = agents.score_of(made, folder)
    return describe(made, seed, model.num_timesteps, seconds, score, episodes.ends, episodes.returns)


def adopt(run: of_compare.Record, trained: Path, published: Path) -> dict[str, Any]:
    """Evaluate the agent of a run of ``compare``, publish it if it is to be published, and return the record."""
    th.set_num_threads(1)
    env_id, made, episodes = run["env"], recipe("ppo_clip", run["env"]), run["episodes"]
    is_shown = agents.ENVIRONMENTS.get(env_id) == run["seed"]
    score = agents.publish(env_id, trained, published / env_id) if is_shown else agents.score_of(made, trained)
    return describe(made, run["seed"], run["steps"], run["cpu_seconds"], score, episodes["ends"], episodes["returns"])


def describe(
    made: Recipe, seed: int, steps: int, seconds: float, score: agents.Score, ends: list[int], returns: list[float]
) -> dict[str, Any]:
    """Make the record of a run, whose episodes ended after these steps with these returns."""
    return {
        "env": made.env_id,
        "seed": seed,
        "timesteps": steps,
        "recipe_timesteps": made.n_timesteps,
        "cpu_seconds": round(seconds),
        "mean": round(score.mean, 2),
        "std": round(score.std, 2),
        "curve": means_of_spans(np.array(ends), np.array(returns), steps, SPANS),
    }


def means_of_spans(ends: np.ndarray, returns: np.ndarray, timesteps: int, number: int) -> list[float | None]:
    """Divide the timesteps into equal spans, and return the mean return of the episodes that ended in each."""
    edges = np.linspace(0, timesteps, number + 1)
    spans = [returns[(low < ends) & (ends <= high)] for low, high in pairwise(edges)]
    return [round(float(span.mean()), 2) if len(span) else None for span in spans]


def read(file: Path) -> list[dict[str, Any]]:
    """Read the records in a JSON Lines file, sorted by seed; there are none if the file does not exist."""
    lines = file.read_text().splitlines() if file.exists() else []
    return sorted(map(json.loads, lines), key=lambda run: run["seed"])


def runs_of(records: list[dict[str, Any]], env_id: str) -> list[dict[str, Any]]:
    """Return the records of the longest runs in an environment, which all have the same number of steps."""
    runs = [run for run in records if run["env"] == env_id]
    longest = max((run["timesteps"] for run in runs), default=0)
    return [run for run in runs if run["timesteps"] == longest]


def missing(records: list[dict[str, Any]], env_id: str, seeds: list[int], timesteps: int | None) -> list[int]:
    """Return the seeds without a record of at least this many steps, each once."""
    steps = timesteps or recipe("ppo_clip", env_id).n_timesteps
    done = {run["seed"] for run in records if run["env"] == env_id and run["timesteps"] >= steps}
    return [seed for seed in dict.fromkeys(seeds) if seed not in done]


def summary(runs: list[dict[str, Any]]) -> str:
    """Summarise the runs in one environment in a sentence."""
    steps, planned = runs[0]["timesteps"], runs[0]["recipe_timesteps"]
    cut = "" if steps >= planned else f" of the recipe's {planned:,}"
    means = ", ".join(f"{run['mean']:.0f}" for run in runs)
    minutes = sum(run["cpu_seconds"] for run in runs) / len(runs) / 60
    spent = f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
    several, each = ("s", " each") if len(runs) > 1 else ("", "")
    seeds = f"seed{several} {', '.join(str(run['seed']) for run in runs)}"
    return f"Reached {means} ({seeds}) after {steps:,} steps{cut}, in {spent} of one core{each}."


def costs() -> str:
    """Say what the agents in Atari games cost, beside SB3's."""
    measured = json.loads(SPEED.read_text())["runs"]["breakout"]
    ours, theirs = (measured["steps"] / np.median(measured["seconds"][name]) for name in ("PPOClip", "PPO"))
    return ATARI.format(ours=ours, theirs=theirs)


def page(records: list[dict[str, Any]], folder: Path) -> str:
    """Return the page in Markdown, with the results in each environment, and draw its pictures into the folder."""
    found = {env_id: runs for env_id in ENVIRONMENTS if (runs := runs_of(records, env_id))}
    parts = [INTRODUCTION, f"{beside(found)}\n"]
    for env_id, runs in found.items():
        draw(runs, folder / f"{env_id}.png")
        goal = "" if ENVIRONMENTS[env_id] is None else f" Goal: {ENVIRONMENTS[env_id]:g}."
        agent = f" ![the trained agent]({env_id}.gif)" if (folder / f"{env_id}.gif").exists() else ""
        text = f"{summary(runs)}{goal}\n\n![learning curve]({env_id}.png){agent}\n"
        said = costs() if env_id == BREAKOUT and not cut_short(runs) else NOTES.get(env_id)
        note = f"{said}\n\n" if said else ""
        parts.append(f"## {env_id}{cut_short(runs)}\n\n{note}{text}")
    return "\n".join([*parts, FILES, f"{agents.overview()}\n"])


def beside(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table of our scores and those that others publish, from the runs in each environment."""
    rows = []
    for env_id, runs in found.items():
        means = pd.Series([run["mean"] for run in runs])
        spread = f" ± {means.std():.0f}" if len(means) > 1 else ""
        rows.append(
            {
                "environment": f"{env_id}{cut_short(runs)}{IN_SHORT.get(env_id, '')}",
                "steps": f"{runs[0]['timesteps']:,}",
                "`PPOClip`": f"{means.mean():.0f}{spread}",
                "seeds": str(len(runs)),
                "rl_zoo3": str(RL_ZOO3.get(env_id, "")),
                "CleanRL": str(CLEANRL.get(env_id, "")),
                "paper": str(PAPER.get(env_id, "")),
            }
        )
    return pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True)


def cut_short(runs: list[dict[str, Any]]) -> str:
    """Say which part of the recipe's steps the runs have, if it is not all of them."""
    share = runs[0]["timesteps"] / runs[0]["recipe_timesteps"]
    return "" if share >= 1 else f" ({share:.0%} of the recipe's steps)"


def draw(runs: list[dict[str, Any]], file: Path) -> None:
    """Draw the learning curves of runs in one environment: a line for each seed, and their mean."""
    points = [
        {"seed": str(run["seed"]), "steps": run["timesteps"] * (span + 1) / SPANS, "return": value}
        for run in runs
        for span, value in enumerate(run["curve"])
    ]
    figure = Figure(figsize=(4.8, 3), layout="constrained")
    axes = figure.subplots()
    frame = pd.DataFrame(points).dropna()
    # In short runs, no episode may have ended.
    if not frame.empty:
        seaborn.lineplot(frame, x="steps", y="return", units="seed", estimator=None, color="0.7", linewidth=1, ax=axes)
        seaborn.lineplot(frame, x="steps", y="return", errorbar=None, color="C0", linewidth=2, ax=axes)
    seeds = f"{len(runs)} {'seeds' if len(runs) > 1 else 'seed'}"
    axes.set(title=f"{runs[0]['env']}, {seeds}", xlabel="environment steps", ylabel="return of an episode")
    axes.locator_params(axis="x", nbins=5)
    seaborn.despine(figure)
    figure.savefig(file, dpi=100)


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--envs", ENVIRONMENTS, list(ENVIRONMENTS))
    parser.add_argument("--seeds", type=whole_number, nargs="+", help="seeds (default: 1 2 3, and all of --runs)")
    parser.add_argument(
        "--timesteps", type=count,
        help="environment steps of a run (default: the recipe's). The page shows the longest runs in each environment",
    )  # fmt: skip
    parser.add_argument("--jobs", type=count, default=2, help="number of parallel runs (default: %(default)s)")
    parser.add_argument("--records", type=Path, default=RECORDS, help="file for the records (default: %(default)s)")
    parser.add_argument(
        "--gallery", type=Path, default=agents.GALLERY, help="folder for the page (default: %(default)s)"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--runs", type=Path, help="folder of `compare --algos ppo_clip --checkpoints`, whose runs to evaluate and add"
    )
    instead.add_argument("--report", action="store_true", help="write the page from the records, without training")


def make(options: argparse.Namespace) -> None:
    """Make the runs that have no record yet, or take them from ``--runs``, and record each when it ends."""
    done, steps, seeds = read(options.records), options.timesteps, options.seeds
    for seed in seeds or ():
        RULES["seed"].check("--seeds", seed)
    if options.runs is not None:
        if steps is not None:
            raise ArgumentError(f"--timesteps {steps} cannot change how long the runs of --runs were: leave it out")
        runs = [run for run in of_compare.read(options.runs / "records") if run["label"] == "ppo_clip"]
        asked = [run for run in runs if run["env"] in options.envs and (seeds is None or run["seed"] in seeds)]
        finished = [run for run in asked if run["status"] == "finished"]
        new = [run for run in finished if missing(done, run["env"], [run["seed"]], run["steps"])]
        plan = [delayed(adopt)(run, options.runs / "checkpoints" / run["name"], agents.AGENTS) for run in new]
    else:
        tasks = [(env, seed, steps) for env in options.envs for seed in missing(done, env, seeds or [1, 2, 3], steps)]
        plan = [delayed(record)(*task) for task in tasks]
    options.records.parent.mkdir(parents=True, exist_ok=True)
    for made in Parallel(n_jobs=options.jobs, return_as="generator_unordered")(plan):
        with options.records.open("a") as lines:
            lines.write(json.dumps(made) + "\n")


def run(options: argparse.Namespace) -> int:
    """Make the runs that have no record yet, and write the page."""
    if not options.report:
        make(options)
    records = read(options.records)
    if not records:
        raise ArgumentError(f"--records {options.records} has no records, so there is nothing to write a page from")
    options.gallery.mkdir(parents=True, exist_ok=True)
    text = page(records, options.gallery)
    (options.gallery / "README.md").write_text(text)
    print(text)
    return 0
