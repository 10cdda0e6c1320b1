"""Measure what parts of a policy cost: how fast a model with them trains, over one without, in CPU time."""

import argparse
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.measuring import add_options, of_workloads, quartiles, reported
from benchmarks.workloads import Workload
from sb3_ppo_variants import PPOClip


def _halfcheetah(**policy_kwargs: str) -> Workload:
    return Workload(partial(make_vec_env, "HalfCheetah-v5"), "MlpPolicy", {"policy_kwargs": policy_kwargs})


def _masked(env: gym.Env) -> ActionMasker:
    return ActionMasker(env, lambda _: np.ones(3, bool))


def _acrobot(policy: str, **policy_kwargs: str) -> Workload:
    # What a memory costs depends on the lengths of episodes. All of these have the same, because 40 steps are too few
    # for the goal.
    cut_off = {"max_episode_steps": 40}
    make_env = partial(make_vec_env, "Acrobot-v1", 8, env_kwargs=cut_off, wrapper_class=_masked)
    return Workload(make_env, policy, {"n_steps": 128, "batch_size": 256, "policy_kwargs": policy_kwargs})


# What is compared, by what it is about. The first of each is the one without the part.
WORKLOADS: Mapping[str, Mapping[str, Workload]] = {
    "distributions": {
        'distribution="gaussian"': _halfcheetah(),
        'std="state"': _halfcheetah(std="state"),
        'distribution="squashed_gaussian"': _halfcheetah(distribution="squashed_gaussian"),
        'distribution="beta"': _halfcheetah(distribution="beta"),
    },
    "masks": {
        "MlpPolicy": _acrobot("MlpPolicy"),
        "MaskableMlpPolicy": _acrobot("MaskableMlpPolicy"),
    },
    "memories": {
        "MlpLstmPolicy": _acrobot("MlpLstmPolicy"),
        "MaskableMlpLstmPolicy": _acrobot("MaskableMlpLstmPolicy"),
        'MlpLstmPolicy, memory="gru"': _acrobot("MlpLstmPolicy", memory="gru"),
    },
}


def _train(workload: Workload) -> Callable[[], float]:
    """Return a function that trains for a rollout and its update, and returns the CPU seconds that they take."""
    model: Any = workload.model(partial(PPOClip, device="cpu", fast=True))

    def run() -> float:
        start = time.process_time()
        model.learn(model.n_steps * model.n_envs, reset_num_timesteps=False)
        return round(time.process_time() - start, 6)

    return run


def table(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the table of one comparison."""
    without, *_ = seconds.values()
    lines = [f"| policy | speed over {next(iter(seconds))} | milliseconds of CPU time |", "|---|---|---|"]
    for name, values in seconds.items():
        ratios = np.array(without) / np.array(values)
        lines.append(f"| {name} | {quartiles(ratios)} | {np.median(values) * 1e3:.0f} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_options(parser, WORKLOADS, list(WORKLOADS), pairs=21)
    parser.add_argument("--json", type=Path, help="file for the measured seconds")
    parser.add_argument("--report", type=Path, help="print the tables of such a file, without measuring")


def run(options: argparse.Namespace) -> int:
    """Measure and print a table for each comparison."""
    th.set_num_threads(1)
    if options.report is None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* has action_masks")
            measured = of_workloads(
                lambda name: {part: _train(workload) for part, workload in WORKLOADS[name].items()},
                options.workloads,
                options.pairs,
                options.json,
            )
    else:
        measured = reported(options.report, "runs")
    print("\n\n".join("\n".join(table(seconds)) for seconds in measured["runs"].values()))
    return 0
