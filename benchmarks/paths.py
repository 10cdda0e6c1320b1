"""Show which path each environment takes with the RL Zoo's settings for PPO, and measure its speed."""

import argparse
import json
from functools import partial
from importlib import import_module, resources
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium.error import Error
from torch import nn

from benchmarks import measuring
from benchmarks.throughput import measure
from benchmarks.workloads import Workload
from sb3_ppo_variants.engines.choice import Choice, choose
from sb3_ppo_variants.errors import ArgumentError, installation, refuse
from sb3_ppo_variants.recipes.hyperparameters import Hyperparameters
from sb3_ppo_variants.recipes.recipe import check_registered, parse
from sb3_ppo_variants.variants import PPOClip

# The game that stands for the zoo's "atari" entry.
ATARI = "BreakoutNoFrameskip-v4"
# Entries that are not environments.
SETTINGS_ONLY = ("default",)
# Steps over all environments: a measured run takes about this many, and a rollout no more than that.
STEPS = 2048


def entries() -> dict[str, Hyperparameters]:
    """Return the zoo's settings by environment, with Python expressions evaluated as the zoo does.

    :raises ImportError: if rl_zoo3 is not installed
    """
    try:
        import yaml

        import_module("rl_zoo3.import_envs")  # Registers the environments of the packages that are installed.
    except ImportError as error:
        raise ImportError(f"the RL Zoo is not installed: {installation('zoo')}") from error
    text = resources.files("rl_zoo3").joinpath("hyperparams", "ppo.yml").read_text()
    listed = {name: values for name, values in yaml.safe_load(text).items() if name not in SETTINGS_ONLY}
    listed[ATARI] = listed.pop("atari")
    return {name: {key: _evaluated(key, value) for key, value in values.items()} for name, values in listed.items()}


def _evaluated(key: str, value: Any) -> Any:
    is_code = key in ("policy_kwargs", "normalize") and isinstance(value, str)
    return eval(value, {"nn": nn, "dict": dict}) if is_code else value


def path(env_id: str, hyperparameters: Hyperparameters) -> Choice:
    """Return the engine that a model with these settings uses, and why.

    :raises ImportError: if a package that the environment needs is missing
    :raises ArgumentError: if there is no such environment
    :raises gymnasium.error.Error: if the environment cannot be created
    """
    check_registered(env_id)
    recipe = parse(PPOClip, env_id, hyperparameters)
    env = recipe.make_env(seed=0)
    try:
        model = PPOClip(env=env, device="cpu", seed=0, **recipe.arguments)
        return choose(model._plan(), model.fast)
    finally:
        env.close()


def ratios(env_id: str, hyperparameters: Hyperparameters, pairs: int) -> np.ndarray:
    """Return the speed of PPOClip relative to SB3's PPO, for each pair of alternating runs on one thread.

    Rollouts are as long as the settings say, but are cut to ``STEPS`` steps over all environments.
    """
    th.set_num_threads(1)
    recipe = parse(PPOClip, env_id, hyperparameters)
    n_steps = min(recipe.arguments.get("n_steps", STEPS), ceil(STEPS / recipe.n_envs))
    settings = {name: value for name, value in recipe.arguments.items() if name != "policy"} | {"n_steps": n_steps}
    rollouts = ceil(STEPS / (n_steps * recipe.n_envs))
    workload = Workload(recipe.make_env, recipe.arguments["policy"], settings, rollouts=rollouts)
    seconds = measure(workload, workload.with_baseline({"PPOClip": partial(PPOClip, device="cpu")}), pairs)["seconds"]
    return np.array(seconds["PPO"]) / np.array(seconds["PPOClip"])


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--envs", nargs="+", metavar="ID", help="only these environments of the zoo's file")
    parser.add_argument(
        "--pairs", action=measuring.Count, help="also measure the speed over SB3's PPO, in this many pairs of runs"
    )
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without measuring")


def run(options: argparse.Namespace) -> int:
    """Print a table of all environments that can be created, and list the others below it."""
    measuring.make_folders(options.json)
    found = _found(options) if options.report is None else measuring.reported(options.report, "environments", "missing")
    print(table(found["environments"]))
    if found["missing"]:
        print(f"\nEnvironments that could not be created: {', '.join(found['missing'])}")
    return 0


def _found(options: argparse.Namespace) -> dict[str, Any]:
    listed = entries()
    for name in options.envs or ():
        if name not in listed:
            refuse("--envs", name, ", ".join(listed))
    found: dict[str, Any] = {**measuring.circumstances(), "environments": {}, "missing": []}
    for name in options.envs or listed:
        try:
            engine, why = path(name, listed[name])
        except (ImportError, Error, ArgumentError):
            found["missing"].append(name)
        else:
            found["environments"][name] = {"path": engine.name, "why": why}
            if options.pairs is not None:
                measured = ratios(name, listed[name], options.pairs)
                found["environments"][name]["ratios"] = measured.round(3).tolist()
        # Write the file after each environment, so that an interrupt loses only the last one.
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    return found


def table(environments: dict[str, dict[str, Any]]) -> str:
    """Return a table of the environments: path, reason and, if measured, speed over SB3's PPO (median, quartiles)."""
    lines = ["| environment | path | why | speed over SB3's PPO |", "|---|---|---|---|"]
    for name, found in environments.items():
        speed = measuring.quartiles(found["ratios"]) if "ratios" in found else ""
        lines.append(f"| {name} | {found['path']} | {found['why']} | {speed} |")
    return "\n".join(lines)
