"""What all settings of a comparison have in common, and the hyperparameters that follow for each."""

import hashlib
import inspect
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

import yaml
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import nn

from sb3_ppo_variants import recipes
from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.benchmark.compare.records import plain
from sb3_ppo_variants.benchmark.compare.settings import RESERVED, Setting, accepted, added_later, load_class, policy_of
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes.environments import Hyperparameters


class File(NamedTuple):
    """Hyperparameters by environment, and the name of their file with a digest of its contents."""

    name: str
    entries: dict[str, Hyperparameters]


def read(path: Path) -> File:
    """Read a yml or py file of hyperparameters in the RL Zoo's format, or raise :class:`ArgumentError`, saying why."""
    try:
        content = path.read_bytes()
        found = run_path(str(path))["hyperparams"] if path.suffix == ".py" else yaml.safe_load(content)
        entries = {env_id: {key: _evaluated(key, value) for key, value in found[env_id].items()} for env_id in found}
    except Exception as error:
        # Of the user's own code, whatever it is.
        raise ArgumentError(
            f"--hyperparams {path} cannot be read: {type(error).__name__}: {error}\n"
            "It must be a yml file, or a py file that defines hyperparams, with a dict for each environment."
        ) from error
    return File(f"{path.name} (sha256 {hashlib.sha256(content).hexdigest()[:12]})", entries)


def _evaluated(name: str, value: object) -> object:
    # In the zoo's yml files these are Python expressions; like a py file, they are the user's own.
    if name in ("policy_kwargs", "normalize", "env_kwargs") and isinstance(value, str):
        return eval(value, {"nn": nn})
    return value


@dataclass(frozen=True)
class Conditions:
    """What is the same for all settings of a comparison.

    :param preset: name of the preset, if it is one
    :param timesteps: environment steps of a run; ``None`` takes those of each environment's hyperparameters
    :param entry: key of the hyperparameters for all environments; ``None`` takes each environment's
    :param file: hyperparameters to take instead of the recipes
    :param parameters: hyperparameters that replace those
    :param normalize: whether ``VecNormalize`` normalises; ``None`` leaves it to the hyperparameters
    :param anneal: whether the step size goes to 0 linearly; ``None`` leaves it to the hyperparameters, or the protocol
    :param protocol: name of the protocol whose hyperparameters replace those of the entry, if it is one
    :param switched: what is different from the protocol, in words
    :raises ArgumentError: (a ``ValueError``) if ``normalize`` and ``parameters`` contradict each other
    """

    preset: str | None = None
    timesteps: int | None = None
    entry: str | None = None
    file: File | None = None
    parameters: Hyperparameters = field(default_factory=dict)
    normalize: bool | None = None
    anneal: bool | None = None
    protocol: str | None = None
    switched: str | None = None

    def __post_init__(self) -> None:
        given = self.parameters.get("normalize")
        if self.normalize is not None and given is not None and bool(given) != self.normalize:
            switch = "--normalize" if self.normalize else "--no-normalize"
            raise ArgumentError(f"-p normalize={given} contradicts {switch}; pass only one of them")

    def under(self, protocol: str | None) -> "Conditions":
        """The conditions under a protocol instead of their own; under their own for ``None``."""
        if protocol is None:
            return self
        return replace(self, protocol=protocol, entry=self.entry or "mujoco", normalize=None, anneal=None)

    def description(self) -> dict[str, Any]:
        """The conditions as JSON can hold them, with the name of the file."""
        parameters = plain("parameters", self.parameters)
        described = {**asdict(self), "file": self.file and self.file.name, "parameters": parameters}
        # Records of earlier versions are without these, and are found again.
        return {k: v for k, v in described.items() if v is not None or k not in ("protocol", "switched")}


class Resolved(NamedTuple):
    """All hyperparameters of a run, in the RL Zoo's format, its steps, and what its algorithm does not have."""

    hyperparameters: Hyperparameters
    timesteps: int
    dropped: list[str]


def resolve(setting: Setting, env_id: str, conditions: Conditions) -> Resolved:
    """The hyperparameters of a setting in an environment; what is not known raises :class:`ArgumentError`."""
    conditions = conditions.under(setting.protocol)
    algorithm = load_class(setting.path)
    known = accepted(algorithm)
    shared, timesteps = _shared(setting, env_id, conditions)
    dropped = [name for name in shared if not _applies(name, known)]
    if conditions.file is None and not issubclass(algorithm, OnPolicyAlgorithm):
        # The recipes are of PPO. What has the same name elsewhere may be something else.
        dropped += sorted(known.keys() & shared.keys() - {"policy", *recipes.ENVIRONMENT_KEYS, *conditions.parameters})
    given = {name: value for name, value in shared.items() if name not in dropped} | setting.arguments
    defaults = {name: value for name, value in known.items() if value is not inspect.Parameter.empty}
    # Networks this small are fastest on a CPU, and the same everywhere.
    hyperparameters = {**defaults, "device": "cpu", **given}
    hyperparameters["policy"] = policy_of(setting, hyperparameters.get("policy"))
    later = added_later(algorithm)
    hyperparameters = {
        name: value
        for name, value in hyperparameters.items()
        if name not in RESERVED and not (name in later and value == later[name])
    }
    if conditions.anneal is not None and "learning_rate" not in setting.arguments:
        hyperparameters["learning_rate"] = _annealed(hyperparameters["learning_rate"], conditions.anneal)
    if conditions.protocol is not None and conditions.anneal is not False:
        hyperparameters = recipes.PROTOCOLS[conditions.protocol].anneal(hyperparameters)
    if not issubclass(algorithm, PPOBase):
        hyperparameters |= _of_sb3(setting, hyperparameters)
    return Resolved(hyperparameters, timesteps, [name for name in dropped if name not in setting.arguments])


def of_environment(env_id: str, conditions: Conditions) -> Hyperparameters:
    """Those hyperparameters that make the environment."""
    shared, _ = _shared(Setting("ppo_clip"), env_id, conditions)
    return {name: value for name, value in shared.items() if name in recipes.ENVIRONMENT_KEYS}


def _shared(setting: Setting, env_id: str, conditions: Conditions) -> tuple[Hyperparameters, int]:
    """The hyperparameters without a setting's own arguments, and the steps of a run."""
    # An algorithm without hyperparameters of its own takes those of PPOClip.
    name = setting.name if setting.name in recipes.ALGORITHMS else "ppo_clip"
    entries = recipes.entries_of(name) if conditions.file is None else conditions.file.entries
    shared = recipes.select(entries, env_id, conditions.entry)
    recommended = shared.pop("n_timesteps", None)
    timesteps = recommended if conditions.timesteps is None else conditions.timesteps
    if not isinstance(timesteps, int | float) or timesteps < 1:
        given = "n_timesteps of its hyperparameters" if conditions.timesteps is None else "--timesteps"
        raise ArgumentError(f"a run in {env_id} must take at least 1 step; {given} is {timesteps!r}")
    if conditions.protocol is not None:
        shared |= recipes.PROTOCOLS[conditions.protocol].changes
    if conditions.normalize is not None:
        shared["normalize"] = conditions.normalize
    shared |= conditions.parameters
    for name in shared.keys() & RESERVED.keys():
        raise ArgumentError(f"{name} cannot be a hyperparameter of a comparison: {RESERVED[name]}")
    return shared, int(timesteps)


def _applies(name: str, known: Mapping[str, object]) -> bool:
    """Whether a hyperparameter that all settings share is for an algorithm with these arguments."""
    # A penalty that is clipped too is another objective, which a setting asks for by an argument of its own.
    clips_a_penalty = name == "clip_range" and known.get(name) is None
    return name in recipes.ENVIRONMENT_KEYS or (name in known and not clips_a_penalty)


def _of_sb3(setting: Setting, hyperparameters: Hyperparameters) -> Hyperparameters:
    """What takes the place of values that only this package's algorithms know."""
    if "normalize_advantage" not in setting.arguments and hyperparameters.get("normalize_advantage") == "rollout":
        raise ArgumentError(
            f"{setting.name} cannot normalise advantages over the rollout: leave it out, or give it its own "
            f"protocol, as in {setting.name}:protocol=sb3"
        )
    unclipped = "max_grad_norm" in hyperparameters and hyperparameters["max_grad_norm"] is None
    return {"max_grad_norm": math.inf} if unclipped else {}


def _annealed(learning_rate: object, anneal: bool) -> str | float:
    """The step size, going to 0 linearly or constant."""
    if isinstance(learning_rate, float | int):
        return f"lin_{learning_rate!r}" if anneal else learning_rate
    with suppress(ValueError):
        if isinstance(learning_rate, str) and learning_rate.startswith("lin_"):
            constant = float(learning_rate.removeprefix("lin_"))
            return learning_rate if anneal else constant
    raise ArgumentError(f"--anneal and --no-anneal need a learning_rate like 3e-4 or lin_3e-4, not {learning_rate!r}")
