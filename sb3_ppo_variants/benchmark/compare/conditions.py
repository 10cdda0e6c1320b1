"""What all settings of a comparison have in common, and the hyperparameters that follow for each."""

import hashlib
import inspect
from dataclasses import asdict, dataclass, field
from pathlib import Path
from runpy import run_path
from typing import Any

from torch import nn

from sb3_ppo_variants import recipes
from sb3_ppo_variants.benchmark.compare.settings import RESERVED, Setting, accepted, load_class
from sb3_ppo_variants.benchmark.compare.values import plain
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.recipes.environments import Hyperparameters
from sb3_ppo_variants.variants import PPOClip

# Arguments that have no part in what a run learns, and those that a run sets itself.
LEFT_OUT = ("verbose", "tensorboard_log", "stats_window_size", *RESERVED)


@dataclass(frozen=True)
class Conditions:
    """What is the same for all settings of a comparison.

    :param preset: name of the preset, if it is one
    :param timesteps: environment steps of a run; ``None`` takes those of each environment's hyperparameters
    :param entry: key of the hyperparameters for all environments; ``None`` takes each environment's
    :param file: yml or py file of hyperparameters in the RL Zoo's format; ``None`` takes the recipes
    :param parameters: hyperparameters that replace those
    :param normalize: whether ``VecNormalize`` normalises; ``None`` leaves it to the hyperparameters
    :param anneal: whether the step size goes to 0 linearly; ``None`` leaves it to the hyperparameters
    """

    preset: str | None = None
    timesteps: int | None = None
    entry: str | None = None
    file: Path | None = None
    parameters: Hyperparameters = field(default_factory=dict)
    normalize: bool | None = None
    anneal: bool | None = None

    def description(self) -> dict[str, Any]:
        """The conditions as JSON can hold them; a file by its name and contents."""
        described = {**asdict(self), "parameters": plain("parameters", self.parameters), "file": None}
        if self.file is not None:
            described["file"] = f"{self.file.name} (sha256 {hashlib.sha256(self.file.read_bytes()).hexdigest()[:12]})"
        return described

    def entries(self, setting: Setting) -> dict[str, Hyperparameters]:
        """The hyperparameters by environment for a setting: those of PPOClip for an algorithm without its own."""
        if self.file is not None:
            return read(self.file)
        return recipes.entries_of(setting.name if setting.name in recipes.ALGORITHMS else "ppo_clip")


@dataclass(frozen=True)
class Resolved:
    """All that a run needs to know of its hyperparameters.

    :param hyperparameters: every argument of the algorithm and the environment, in the RL Zoo's format
    :param timesteps: environment steps
    :param dropped: hyperparameters that the algorithm does not have
    """

    hyperparameters: Hyperparameters
    timesteps: int
    dropped: list[str]


def resolve(setting: Setting, env_id: str, conditions: Conditions) -> Resolved:
    """The hyperparameters of a setting in an environment.

    :raises ArgumentError: (a ``ValueError``) for what is not known
    """
    known = accepted(load_class(setting.path))
    shared = recipes.select(conditions.entries(setting), env_id, conditions.entry)
    timesteps = int(shared.pop("n_timesteps", 0)) if conditions.timesteps is None else conditions.timesteps
    shared.pop("n_timesteps", None)
    if timesteps < 1:
        refuse("timesteps", timesteps, f"an integer >= 1, as --timesteps or as n_timesteps of {env_id}")
    if conditions.normalize is not None:
        shared["normalize"] = conditions.normalize
    shared |= conditions.parameters
    dropped = [name for name in shared if not applies(name, known)]
    given = {name: value for name, value in shared.items() if name not in dropped} | setting.arguments
    defaults = {
        name: value for name, value in known.items() if name not in LEFT_OUT and value is not inspect.Parameter.empty
    }
    # Networks this small are fastest on a CPU, and the same everywhere.
    hyperparameters = {**defaults, "device": "cpu", **given}
    hyperparameters = {name: value for name, value in hyperparameters.items() if name not in LEFT_OUT}
    if conditions.anneal is not None:
        hyperparameters["learning_rate"] = annealed(hyperparameters["learning_rate"], conditions.anneal)
    return Resolved(hyperparameters, timesteps, [name for name in dropped if name not in setting.arguments])


def applies(name: str, known: dict[str, Any]) -> bool:
    """Whether a hyperparameter that all settings share is for an algorithm with these arguments.

    :raises ArgumentError: (a ``ValueError``) if it is for no algorithm of the kind
    """
    if name in RESERVED:
        refuse("hyperparameter", name, RESERVED[name])
    if name in recipes.ENVIRONMENT_KEYS:
        return True
    if name not in known and name not in accepted(PPOClip):
        refuse("hyperparameter", name, ", ".join([*recipes.ENVIRONMENT_KEYS, *accepted(PPOClip).keys() - RESERVED]))
    # A penalty that is clipped too is another objective, which a setting asks for by an argument of its own.
    return name in known and not (name == "clip_range" and known[name] is None)


def annealed(learning_rate: Any, anneal: bool) -> str | float:
    """The step size, going to 0 linearly or constant.

    :raises ArgumentError: (a ``ValueError``) for a schedule that is not linear
    """
    if isinstance(learning_rate, str) and learning_rate.startswith("lin_"):
        return learning_rate if anneal else float(learning_rate.removeprefix("lin_"))
    if isinstance(learning_rate, float | int):
        return f"lin_{learning_rate:g}" if anneal else learning_rate
    refuse("learning_rate", learning_rate, "a number or lin_x, with --anneal or --no-anneal")


def read(file: Path) -> dict[str, Hyperparameters]:
    """The hyperparameters in a yml or py file in the RL Zoo's format.

    :raises ArgumentError: (a ``ValueError``) if there are none
    """
    allowed = "a yml file, or a py file that defines hyperparams, with a dict for each environment"
    try:
        found = run_path(str(file)).get("hyperparams") if file.suffix == ".py" else _read_yml(file)
    except OSError as error:
        refuse("hyperparams", str(file), f"{allowed} ({error})")
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        refuse("hyperparams", str(file), allowed)
    return {env_id: {name: _evaluated(name, value) for name, value in found[env_id].items()} for env_id in found}


def _read_yml(file: Path) -> Any:
    import yaml

    return yaml.safe_load(file.read_text())


def _evaluated(name: str, value: Any) -> Any:
    # In the zoo's yml files these are Python expressions; like a py file, they are the user's own.
    if name in ("policy_kwargs", "normalize", "env_kwargs") and isinstance(value, str):
        return eval(value, {"nn": nn})
    return value
