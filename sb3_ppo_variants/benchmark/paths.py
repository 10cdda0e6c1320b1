"""Say which path each environment takes with the RL Zoo's settings for PPO, and measure how fast it is."""

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

from sb3_ppo_variants.backends.choice import Choice, choose
from sb3_ppo_variants.benchmark import measuring
from sb3_ppo_variants.benchmark.throughput import measure
from sb3_ppo_variants.benchmark.workloads import Workload
from sb3_ppo_variants.errors import ArgumentError, refuse
from sb3_ppo_variants.recipes.environments import Hyperparameters
from sb3_ppo_variants.recipes.recipe import check_registered, parse
from sb3_ppo_variants.variants import PPOClip

# The game that stands for all of Atari's.
ATARI = "BreakoutNoFrameskip-v4"
# No environments.
SETTINGS_ONLY = ("default",)
# Steps over all environments: a measured run has about as many, and its rollouts no more.
STEPS = 2048


def entries() -> dict[str, Hyperparameters]:
    """The zoo's settings by environment, with their strings of Python evaluated, as the zoo does.

    :raises ImportError: if rl_zoo3 is not installed
    """
    try:
        import yaml

        import_module("rl_zoo3.import_envs")  # Registers the environments of the packages that are installed.
    except ImportError as error:
        raise ImportError("the RL Zoo is not installed: pip install 'sb3_ppo_variants[zoo]'") from error
    text = resources.files("rl_zoo3").joinpath("hyperparams", "ppo.yml").read_text()
    listed = {name: values for name, values in yaml.safe_load(text).items() if name not in SETTINGS_ONLY}
    listed[ATARI] = listed.pop("atari")
    return {name: {key: _evaluated(key, value) for key, value in values.items()} for name, values in listed.items()}


def _evaluated(key: str, value: Any) -> Any:
    is_code = key in ("policy_kwargs", "normalize") and isinstance(value, str)
    return eval(value, {"nn": nn, "dict": dict}) if is_code else value


def path(env_id: str, hyperparameters: Hyperparameters) -> Choice:
    """The backend that a model of these settings takes, and why.

    :raises ImportError: if a package that the environment needs is missing
    :raises ArgumentError: if there is no such environment
    :raises gymnasium.error.Error: if it cannot be made
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
    """How many times the speed of SB3's PPO PPOClip has, in each pair of alternating runs on one thread.

    The rollouts are those of the settings, or shorter where these have more than ``STEPS`` steps.
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
        "--pairs", action=measuring.Count, help="also measure the speed over SB3's PPO, in PAIRS of runs"
    )
    parser.add_argument("--json", type=Path, help="file for what is measured")
    parser.add_argument("--report", type=Path, help="make nothing, print the table of such a file")


def run(options: argparse.Namespace) -> int:
    """Print a table of all environments that can be made, and the others below."""
    found = _found(options) if options.report is None else json.loads(options.report.read_text())
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
            backend, why = path(name, listed[name])
        except (ImportError, Error, ArgumentError):
            found["missing"].append(name)
        else:
            found["environments"][name] = {"path": type(backend).__name__.lower(), "why": why}
            if options.pairs is not None:
                measured = ratios(name, listed[name], options.pairs)
                found["environments"][name]["ratios"] = measured.round(3).tolist()
        # After each, so that an interrupt loses only the last.
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    return found


def table(environments: dict[str, dict[str, Any]]) -> str:
    """A line for each environment: its path, why, and the median speed over SB3's PPO with quartiles, if measured."""
    lines = ["| environment | path | why | speed over SB3's PPO |", "|---|---|---|---|"]
    for name, found in environments.items():
        speed = measuring.quartiles(found["ratios"]) if "ratios" in found else ""
        lines.append(f"| {name} | {found['path']} | {found['why']} | {speed} |")
    return "\n".join(lines)
