"""Reads hyperparameters in the RL Zoo's form: those of the package, and those in files of users.

``hyperparameters.yml`` has the hyperparameters of the package, with the source of each.
"""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch as th
import yaml
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn

Hyperparameters = dict[str, Any]

# What the RL Zoo's files write as Python, and the names that they use.
PYTHON = ("policy_kwargs", "normalize", "env_kwargs")
PYTHON_NAMES = {"nn": nn, "th": th, "RMSpropTFLike": RMSpropTFLike}
# Algorithms that PPO is compared with.
BASELINES = ("stable_baselines3:A2C", "sb3_contrib:TRPO")


def evaluate_python(entries: Mapping[str, Hyperparameters]) -> dict[str, Hyperparameters]:
    """Evaluate what entries write as Python. A file can thus run any code: it must be the user's own."""
    return {
        env_id: {
            name: eval(value, dict(PYTHON_NAMES)) if name in PYTHON and isinstance(value, str) else value
            for name, value in entry.items()
        }
        for env_id, entry in entries.items()
    }


@cache
def read_hyperparameters() -> dict[str, Any]:
    """Read the package's file."""
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
    return found


def entries_in_file(algorithm: str) -> dict[str, Hyperparameters]:
    """List the hyperparameters of every environment for an algorithm as in a file of the RL Zoo, with Python as text.

    :param algorithm: such as ``"ppo_clip"``, or one of ``BASELINES``
    """
    found = read_hyperparameters()[algorithm if algorithm in BASELINES else "ppo"]
    # Some entries are the same object.
    entries: dict[str, Hyperparameters] = {env_id: deepcopy(entry) for env_id, entry in found.items()}
    own = read_hyperparameters()["instead_of_clip_range"].get(algorithm)
    if own is not None:
        for entry in entries.values():
            del entry["clip_range"]
            entry |= own
    return entries


def entries_of(algorithm: str) -> dict[str, Hyperparameters]:
    """List the hyperparameters of every environment for an algorithm, each with objects of its own.

    :param algorithm: such as ``"ppo_clip"``, or one of ``BASELINES``
    """
    return evaluate_python(entries_in_file(algorithm))
