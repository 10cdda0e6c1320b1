"""The conditions that all settings of a comparison share, and the resulting hyperparameters of each setting."""

import hashlib
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
from sb3_ppo_variants.compare.records import plain
from sb3_ppo_variants.compare.settings import (
    RESERVED,
    Setting,
    accepted,
    added_later,
    load_class,
    own_defaults,
    policy_of,
)
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes.environments import Hyperparameters


class File(NamedTuple):
    """Hyperparameters by environment, and the name of their file with a digest of its contents."""

    name: str
    entries: dict[str, Hyperparameters]


def read(path: Path) -> File:
    """Read a yml or py file of hyperparameters in the RL Zoo's format.

    :raises ArgumentError: if it cannot be read, saying why
    """
    try:
        content = path.read_bytes()
        found = run_path(str(path))["hyperparams"] if path.suffix == ".py" else yaml.safe_load(content)
        entries = {env_id: {key: _evaluated(key, value) for key, value in found[env_id].items()} for env_id in found}
    except Exception as error:
        # A py file is the user's own code, which may raise anything.
        raise ArgumentError(
            f"--hyperparams {path} cannot be read: {type(error).__name__}: {error}\n"
            "It must be a yml file, or a py file that defines hyperparams, with a dict for each environment."
        ) from error
    return File(f"{path.name} (sha256 {hashlib.sha256(content).hexdigest()[:12]})", entries)


def _evaluated(name: str, value: object) -> object:
    # In the zoo's yml files these are Python expressions. Like a py file, they are the user's own code.
    if name in ("policy_kwargs", "normalize", "env_kwargs") and isinstance(value, str):
        return eval(value, {"nn": nn})
    return value


@dataclass(frozen=True)
class Conditions:
    """The conditions that all settings of a comparison share.

    :param preset: name of the preset, if there is one
    :param timesteps: environment steps of a run; ``None`` takes those of each environment's hyperparameters
    :param entry: key of the hyperparameters for all environments; ``None`` takes each environment's own
    :param file: hyperparameters to use instead of the recipes
    :param parameters: hyperparameters that replace those of the entry, the file or the protocol
    :param normalize: whether to normalise with ``VecNormalize``; ``None`` leaves it to the hyperparameters
    :param anneal: whether to anneal the step size linearly to 0; ``None`` leaves it to the hyperparameters, or to the
        protocol
    :param protocol: name of the protocol whose hyperparameters replace those of the entry or file, if there is one
    :param switched: what differs from the protocol, in words
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
        given = self.parameters.get("normalize", self.normalize)
        # VecNormalize without arguments normalises too.
        if self.normalize is not None and (given == {} or bool(given)) != self.normalize:
            switch = "--normalize" if self.normalize else "--no-normalize"
            raise ArgumentError(f"-p normalize={given} contradicts {switch}; pass only one of them")

    def under(self, protocol: str | None) -> "Conditions":
        """Return the conditions with this protocol instead of their own; ``None`` leaves them unchanged."""
        if protocol is None:
            return self
        # A file has entries of its own.
        entry = self.entry or ("mujoco" if self.file is None else None)
        return replace(self, protocol=protocol, entry=entry, normalize=None, anneal=None)

    def description(self) -> dict[str, Any]:
        """Return the conditions as JSON-serialisable values, with the name of the file instead of its contents."""
        parameters = plain("parameters", self.parameters)
        described = {**asdict(self), "file": self.file and self.file.name, "parameters": parameters}
        # Records of earlier versions lack these two. Leaving them out if they are None lets those records still match.
        return {k: v for k, v in described.items() if v is not None or k not in ("protocol", "switched")}


class Resolved(NamedTuple):
    """All hyperparameters of a run, in the RL Zoo's format, its steps, and those that its algorithm does not use."""

    hyperparameters: Hyperparameters
    timesteps: int
    dropped: list[str]


def resolve(setting: Setting, env_id: str, conditions: Conditions) -> Resolved:
    """Determine the hyperparameters of a setting in an environment.

    :raises ArgumentError: if something is unknown or not allowed
    """
    conditions = conditions.under(setting.protocol)
    algorithm = load_class(setting.path)
    known = accepted(algorithm)
    shared, timesteps = _shared(setting, env_id, conditions)
    dropped = [name for name in shared if not _applies(name, known)]
    if conditions.file is None and not issubclass(algorithm, OnPolicyAlgorithm):
        # The recipes are for PPO. In other kinds of algorithms, an argument of the same name may mean something else.
        dropped += sorted(known.keys() & shared.keys() - {"policy", *recipes.ENVIRONMENT_KEYS, *conditions.parameters})
    given = {name: value for name, value in shared.items() if name not in dropped}
    given |= _under(conditions.protocol, setting.arguments)
    # Networks this small are fastest on a CPU, and runs then use the same device on every machine.
    hyperparameters = {**own_defaults(algorithm), **_annealed_defaults(known, conditions), "device": "cpu", **given}
    hyperparameters["policy"] = policy_of(setting, hyperparameters.get("policy"))
    later = added_later(algorithm)
    hyperparameters = {
        name: value
        for name, value in hyperparameters.items()
        if name not in RESERVED and not (name in later and value == later[name])
    }
    if conditions.anneal is not None and "learning_rate" not in setting.arguments:
        if "learning_rate" not in hyperparameters:
            switch = "--anneal" if conditions.anneal else "--no-anneal"
            raise ArgumentError(f"{switch} is for algorithms with a learning_rate, which {setting.name} does not have")
        hyperparameters["learning_rate"] = _annealed(hyperparameters["learning_rate"], conditions.anneal)
    if conditions.protocol is not None and conditions.anneal is not False:
        hyperparameters = recipes.PROTOCOLS[conditions.protocol].anneal(hyperparameters)
    if not issubclass(algorithm, PPOBase):
        hyperparameters |= _of_sb3(setting, hyperparameters)
    return Resolved(hyperparameters, timesteps, [name for name in dropped if name not in setting.arguments])


def _annealed_defaults(known: Mapping[str, object], conditions: Conditions) -> Hyperparameters:
    """Return the default numbers of arguments that are annealed, which a class may take as ``**kwargs``."""
    names = [] if conditions.protocol is None else [*recipes.PROTOCOLS[conditions.protocol].annealed]
    names += [] if conditions.anneal is None else ["learning_rate"]
    return {name: value for name in names if isinstance(value := known.get(name), float | int)}


def of_environment(env_id: str, conditions: Conditions) -> Hyperparameters:
    """Return the hyperparameters that define the environment."""
    shared, _ = _shared(Setting("ppo_clip"), env_id, conditions)
    return {name: value for name, value in shared.items() if name in recipes.ENVIRONMENT_KEYS}


def _shared(setting: Setting, env_id: str, conditions: Conditions) -> tuple[Hyperparameters, int]:
    """Return the hyperparameters without the setting's own arguments, and the steps of a run."""
    # An algorithm without hyperparameters of its own uses those of PPOClip.
    name = setting.name if setting.name in recipes.ALGORITHMS else "ppo_clip"
    entries = recipes.entries_of(name) if conditions.file is None else conditions.file.entries
    shared = recipes.select(entries, env_id, conditions.entry)
    recommended = shared.pop("n_timesteps", None)
    timesteps = recommended if conditions.timesteps is None else conditions.timesteps
    if not isinstance(timesteps, int | float) or timesteps < 1:
        given = "n_timesteps of its hyperparameters" if conditions.timesteps is None else "--timesteps"
        raise ArgumentError(f"a run in {env_id} must take at least 1 step; {given} is {timesteps!r}")
    if conditions.protocol is not None:
        shared = recipes.PROTOCOLS[conditions.protocol].over(shared)
    if conditions.normalize is not None:
        shared["normalize"] = conditions.normalize
    shared |= _under(conditions.protocol, conditions.parameters)
    for name in shared.keys() & RESERVED.keys():
        raise ArgumentError(f"{name} cannot be a hyperparameter of a comparison: {RESERVED[name]}")
    return shared, int(timesteps)


def _under(protocol: str | None, changes: Hyperparameters) -> Hyperparameters:
    """Return changes that keep what a protocol adds, if there is one."""
    return changes if protocol is None else recipes.PROTOCOLS[protocol].under(changes)


def _applies(name: str, known: Mapping[str, object]) -> bool:
    """Return whether a shared hyperparameter applies to an algorithm with these arguments."""
    # A penalised objective that is also clipped is a different one, which a setting must request with its own argument.
    clips_a_penalty = name == "clip_range" and known.get(name) is None
    return name in recipes.ENVIRONMENT_KEYS or (name in known and not clips_a_penalty)


def _of_sb3(setting: Setting, hyperparameters: Hyperparameters) -> Hyperparameters:
    """Return replacements for values that only this package's algorithms accept, or refuse those without one."""
    if "normalize_advantage" not in setting.arguments and hyperparameters.get("normalize_advantage") == "rollout":
        raise ArgumentError(
            f"{setting.name} cannot normalise advantages over the rollout: leave it out, or give it its own "
            f"protocol, as in {setting.name}:protocol=sb3"
        )
    unclipped = "max_grad_norm" in hyperparameters and hyperparameters["max_grad_norm"] is None
    return {"max_grad_norm": math.inf} if unclipped else {}


def _annealed(learning_rate: object, anneal: bool) -> str | float:
    """Return the step size, annealed linearly to 0 or constant."""
    if isinstance(learning_rate, float | int):
        return f"lin_{learning_rate!r}" if anneal else learning_rate
    with suppress(ValueError):
        if isinstance(learning_rate, str) and learning_rate.startswith("lin_"):
            constant = float(learning_rate.removeprefix("lin_"))
            return learning_rate if anneal else constant
    raise ArgumentError(f"--anneal and --no-anneal need a learning_rate like 3e-4 or lin_3e-4, not {learning_rate!r}")
