"""Files of hyperparameters in the RL Zoo's format."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from runpy import run_path

from torch import nn

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes.environments import Hyperparameters


@dataclass(frozen=True)
class File:
    """What a file says.

    :param name: its name, and a digest of its contents
    :param entries: hyperparameters by environment
    """

    name: str
    entries: dict[str, Hyperparameters]


def read(path: Path) -> File:
    """Read a yml or py file.

    :raises ArgumentError: (a ``ValueError``) if it has no hyperparameters, or can not be read, saying why
    """
    try:
        name = f"{path.name} (sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]})"
        found = run_path(str(path))["hyperparams"] if path.suffix == ".py" else _read_yml(path)
        entries = {env_id: {key: _evaluated(key, value) for key, value in found[env_id].items()} for env_id in found}
    except Exception as error:
        # Of the user's own code, whatever it is.
        raise ArgumentError(
            f"--hyperparams {path} cannot be read: {type(error).__name__}: {error}\n"
            "It must be a yml file, or a py file that defines hyperparams, with a dict for each environment."
        ) from error
    return File(name, entries)


def _read_yml(path: Path) -> dict[str, Hyperparameters]:
    import yaml

    return yaml.safe_load(path.read_text())


def _evaluated(name: str, value: object) -> object:
    # In the zoo's yml files these are Python expressions; like a py file, they are the user's own.
    if name in ("policy_kwargs", "normalize", "env_kwargs") and isinstance(value, str):
        return eval(value, {"nn": nn})
    return value
