"""Tune hybrid actions and bins in MoveOrKick-v0 alike: as many settings of each, on seeds that no comparison uses.

Every kind of action has three hyperparameters with two values each. Bins get the recipe's other hyperparameters.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch as th

from benchmarks.measuring import Count, make_folders, reported
from sb3_ppo_variants import recipes
from sb3_ppo_variants.commandline import whole_number
from sb3_ppo_variants.recipes.training import Episodes, build

ENV = "examples.environments:MoveOrKick-v0"
# As in a comparison, a score is the mean return of the last episodes of a run.
LAST = 100
RATES = (1e-3, 3e-3)
ENTROPIES = (0.0, 0.01)
LOG_STDS = (0.0, -1.0)
BINS = (11, 21)
ONLY_IF = {"move": ("choice", 0), "kick": ("choice", 1)}
WEIGHTS = {"choice": 1.0, "kick": 0.0, "move": 0.0}

Changes = dict[str, Any]


def candidates() -> dict[str, dict[str, Changes]]:
    """Return the changes of the recipe to try, by the kind of action, and by what a table says of them."""
    shared = {f"learning_rate={rate}, ent_coef={entropy}": {"learning_rate": rate, "ent_coef": entropy}
              for rate, entropy in product(RATES, ENTROPIES)}  # fmt: skip
    hybrid = {
        f"{name}, log_std_init={log_std}": {
            **each, "policy_kwargs": {"only_if": ONLY_IF, "entropy_weights": WEIGHTS, "log_std_init": log_std},
        }
        for (name, each), log_std in product(shared.items(), LOG_STDS)
    }  # fmt: skip
    cut = {
        kind: {
            f"{name}, n_bins={bins}": {
                **each, "policy_kwargs": {}, "env_kwargs": {"n_bins": bins, "factorised": kind == "factorised"},
            }
            for (name, each), bins in product(shared.items(), BINS)
        }
        for kind in ("factorised", "joint")
    }  # fmt: skip
    return {"hybrid": hybrid, **cut}


def score(changes: Changes, seed: int) -> float:
    """Train with the recipe and its changes, and return the mean return of the last episodes."""
    th.set_num_threads(1)
    made = recipes.recipe("ppo_clip", ENV, **changes)
    episodes = Episodes()
    build(made, seed).learn(made.n_timesteps, episodes)
    return float(np.mean(episodes.returns[-LAST:]))


def tune(seeds: list[int], jobs: int) -> dict[str, Any]:
    """Return the scores of all candidates, each candidate's in the order in which its runs ended."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        runs = {
            pool.submit(score, changes, seed): (kind, name)
            for seed in seeds
            for kind, of_kind in candidates().items()
            for name, changes in of_kind.items()
        }
        found: dict[str, dict[str, list[float]]] = {kind: {} for kind in candidates()}
        for run in as_completed(runs):
            kind, name = runs[run]
            found[kind].setdefault(name, []).append(round(run.result(), 4))
            print(kind, name, found[kind][name], flush=True)
    return {"seeds": seeds, "scores": found}


def table(found: dict[str, Any]) -> str:
    """Return the mean score of each candidate as a table in Markdown, the best of each kind first."""
    rows = [
        {"actions": kind, "setting": name, "mean return": f"{np.mean(scores):.2f}"}
        for kind, of_kind in found["scores"].items()
        for name, scores in sorted(of_kind.items(), key=lambda each: -np.mean(each[1]))
    ]
    return str(pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True))


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this tool."""
    parser.add_argument("--seeds", type=whole_number, nargs="+", default=[100, 101], help="seeds (default: 100 101)")
    parser.add_argument("--jobs", action=Count, default=2, help="number of parallel runs (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the scores")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without training")


def run(options: argparse.Namespace) -> int:
    """Train all candidates, write their scores to a file, and print a table of them."""
    if options.report is None:
        make_folders(options.json)
        found = tune(options.seeds, options.jobs)
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    else:
        found = reported(options.report, "seeds", "scores")
    print(table(found))
    return 0
