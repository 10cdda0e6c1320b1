"""Train with SB3's PPO and with both paths of PPOClip, and compare what they learned."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.benchmark.runs import make, read
from sb3_ppo_variants.recipes.episodes import Episodes
from sb3_ppo_variants.variants import PPOClip

RECORDS = Path("results/agreement.jsonl")
# The curve of a run is kept as the mean return of the episodes that ended in each of so many equal spans of steps; the
# last two spans, a tenth of the run, are its final return.
SPANS = 20
FINAL_SPANS = 2


@dataclass(frozen=True)
class Task:
    """An environment, for how long to train on it and with how many seeds."""

    n_envs: int
    timesteps: int
    seeds: int
    settings: dict[str, Any]


TASKS = {
    "CartPole-v1": Task(n_envs=8, timesteps=50_000, seeds=10, settings={"n_steps": 256}),
    "HalfCheetah-v5": Task(n_envs=1, timesteps=300_000, seeds=5, settings={}),
}
ARMS: dict[str, tuple[type[OnPolicyAlgorithm], dict[str, Any]]] = {
    "SB3's PPO": (PPO, {}),
    "PPOClip, fast=False": (PPOClip, {"fast": False}),
    "PPOClip, fast=True": (PPOClip, {"fast": True}),
}


def train(arm: str, env: str, seed: int) -> dict[str, Any]:
    """Train once.

    :return: a record of the run
    """
    th.set_num_threads(1)
    task = TASKS[env]
    algorithm, arguments = ARMS[arm]
    vec_env = make_vec_env(env, n_envs=task.n_envs, seed=seed)
    episodes = Episodes()
    model = algorithm("MlpPolicy", vec_env, seed=seed, device="cpu", **task.settings, **arguments)
    model.learn(task.timesteps, callback=episodes)
    spans = episodes.spans(model.num_timesteps, SPANS)
    curve = [round(float(span.mean()), 2) if len(span) else None for span in spans]
    final = np.concatenate(spans[-FINAL_SPANS:])
    return {"env": env, "arm": arm, "seed": seed, "final": round(float(final.mean()), 2), "curve": curve}


def finals(records: list[dict[str, Any]], env: str) -> dict[str, np.ndarray]:
    """The final returns on an environment by arm, shape ``(seeds, 1)``."""
    of_env = [record for record in records if record["env"] == env]
    arms = [arm for arm in ARMS if any(record["arm"] == arm for record in of_env)]
    return {arm: np.array([[r["final"]] for r in of_env if r["arm"] == arm]) for arm in arms}


def report(records: list[dict[str, Any]]) -> list[str]:
    """A table of the final returns: rliable's interquartile mean and mean with stratified bootstrap intervals."""
    from rliable import library, metrics

    lines = ["| environment | steps | arm | seeds | IQM (95% CI) | mean (95% CI) |", "|---|---|---|---|---|---|"]
    for env, task in TASKS.items():
        scores = finals(records, env)
        if not scores:
            continue
        points, intervals = library.get_interval_estimates(
            scores,
            lambda x: np.array([metrics.aggregate_iqm(x), metrics.aggregate_mean(x)]),
            reps=10_000,
            random_state=np.random.RandomState(0),
        )
        for arm, (iqm, mean) in points.items():
            (iqm_low, mean_low), (iqm_high, mean_high) = intervals[arm]
            iqm_cell = f"{iqm:.0f} ({iqm_low:.0f} to {iqm_high:.0f})"
            mean_cell = f"{mean:.0f} ({mean_low:.0f} to {mean_high:.0f})"
            lines.append(f"| {env} | {task.timesteps} | {arm} | {len(scores[arm])} | {iqm_cell} | {mean_cell} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--envs", nargs="+", choices=TASKS, default=list(TASKS), metavar="ID", help=f"of {list(TASKS)}")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM", help=f"of {list(ARMS)}")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: %(default)s)")
    parser.add_argument("--records", type=Path, default=RECORDS, help="file of records (default: %(default)s)")
    parser.add_argument("--report", action="store_true", help="train nothing, print the table of the records")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the runs that have no record yet, record each as it ends, and print the table.

    :return: 0
    """
    done = {(record["arm"], record["env"], record["seed"]) for record in read(options.records)}
    plan = [(arm, env, seed) for env in options.envs for arm in options.arms for seed in range(TASKS[env].seeds)]
    missing = [] if options.report else [run for run in plan if run not in done]
    print("\n".join(report(make(train, missing, options.records, options.jobs))))
    return 0
