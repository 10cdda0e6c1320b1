"""What is compared: algorithms, each with arguments of its own."""

import inspect
import re
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppo_variants import recipes
from sb3_ppo_variants.benchmark.compare.values import assignments
from sb3_ppo_variants.errors import refuse

# Where each algorithm comes from. SB3's PPO is what the others are compared with.
BASELINE = "sb3_ppo"
ALGORITHMS = {
    **{name: f"sb3_ppo_variants:{algorithm.__name__}" for name, algorithm in recipes.ALGORITHMS.items()},
    BASELINE: "stable_baselines3:PPO",
    "sb3_a2c": "stable_baselines3:A2C",
    "trpo": "sb3_contrib:TRPO",
}
# What is no hyperparameter: given elsewhere, with where, or without a part in what is learned.
NO_PART = "no value, as it has no part in what is learned"
RESERVED = {
    "env": "--envs",
    "seed": "--seeds",
    "n_timesteps": "--timesteps",
    "verbose": NO_PART,
    "tensorboard_log": NO_PART,
    "stats_window_size": NO_PART,
    "_init_setup_model": NO_PART,
}


@dataclass(frozen=True)
class Setting:
    """An algorithm with arguments of its own.

    :param name: a key of ``ALGORITHMS``, or ``module:Class``
    :param arguments: arguments that differ from the hyperparameters of the environment
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The setting in words."""
        listed = ", ".join(f"{name}={value}" for name, value in sorted(self.arguments.items()))
        return f"{self.name} {listed}".strip()

    @property
    def path(self) -> str:
        """``module:Class``."""
        return ALGORITHMS.get(self.name, self.name)


def parse(text: str) -> Setting:
    """The setting that ``name``, ``name:argument=value,...`` or either with ``module:Class`` for the name stands for.

    :raises ArgumentError: (a ``ValueError``) if the algorithm is not known or has no such argument
    """
    name, *given = re.split(r":(?=\s*\w+\s*=)", text, maxsplit=1)
    setting = Setting(name, assignments(given[0]) if given else {})
    known = accepted(load_class(setting.path))
    for argument in setting.arguments:
        if argument in RESERVED:
            refuse(f"{argument} of {text}", setting.arguments[argument], RESERVED[argument])
        if argument not in known and argument not in recipes.ENVIRONMENT_KEYS:
            allowed = ", ".join([*sorted(known - RESERVED.keys()), *recipes.ENVIRONMENT_KEYS])
            refuse(f"argument of {name}", argument, allowed)
    return setting


def load_class(path: str) -> type[BaseAlgorithm]:
    """The class at ``module:Class``.

    :raises ArgumentError: (a ``ValueError``) if there is none, or it is no algorithm of SB3's kind
    """
    module, _, name = path.partition(":")
    allowed = f"{', '.join(ALGORITHMS)}, or module:Class"
    if not module or not name:
        refuse("algorithm", path, allowed)
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # Of the module's own code, whatever it is.
        extra = "; pip install 'sb3_ppo_variants[contrib]'" if module == "sb3_contrib" else ""
        refuse("algorithm", path, f"{allowed} ({type(error).__name__}: {error}{extra})")
    if not (isinstance(found, type) and issubclass(found, BaseAlgorithm)):
        refuse("algorithm", path, "a subclass of stable_baselines3's BaseAlgorithm")
    return found


def accepted(algorithm: type) -> dict[str, Any]:
    """The arguments of a class with their defaults, those of its bases too where it hands arguments on by ``**``."""
    arguments: dict[str, Any] = {}
    for base in algorithm.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        arguments = {**{parameter.name: parameter.default for parameter in named}, **arguments}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return arguments
