"""Say which path each environment takes with the RL Zoo's settings for PPO; nothing is trained."""

import argparse
from importlib import resources
from typing import Any

from gymnasium.error import Error
from torch import nn

from sb3_ppo_variants.backends.choice import Choice, choose
from sb3_ppo_variants.errors import ArgumentError, refuse
from sb3_ppo_variants.recipes.environments import Hyperparameters
from sb3_ppo_variants.recipes.recipe import check_registered, parse
from sb3_ppo_variants.variants import PPOClip

# The game that stands for all of Atari's.
ATARI = "BreakoutNoFrameskip-v4"
# No environments.
SETTINGS_ONLY = ("default",)


def entries() -> dict[str, Hyperparameters]:
    """The zoo's settings by environment, with their strings of Python evaluated, as the zoo does.

    :raises ImportError: if rl_zoo3 is not installed
    """
    try:
        import yaml

        folder = resources.files("rl_zoo3")
    except ImportError as error:
        raise ImportError("the RL Zoo is not installed: pip install 'sb3_ppo_variants[zoo]'") from error
    text = folder.joinpath("hyperparams", "ppo.yml").read_text()
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


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--envs", nargs="+", metavar="ID", help="only these environments of the zoo's file")


def run(options: argparse.Namespace) -> int:
    """Print a table of all environments that can be made, and the others below."""
    listed = entries()
    names = list(listed) if options.envs is None else options.envs
    for name in names:
        if name not in listed:
            refuse("--envs", name, ", ".join(listed))
    missing = []
    print("| environment | path | why |\n|---|---|---|")
    for name in names:
        try:
            backend, why = path(name, listed[name])
        except (ImportError, Error, ArgumentError):
            missing.append(name)
            continue
        print(f"| {name} | {type(backend).__name__.lower()} | {why} |", flush=True)
    if missing:
        print(f"\nEnvironments that could not be created: {', '.join(missing)}")
    return 0
