"""What is compared: settings and the conditions that they share, as the command line and YAML files give them.

A comparison in a file has these keys, all of which may be missing::

    name: of the comparison (default: the name of the file)
    settings: [ppo_clip, "ppo_fixed_kl:kl_coef=1", sb3_ppo]
    envs: [CartPole-v1]
    seeds: 3
    conditions: {timesteps: 50000, normalize: true, parameters: {n_steps: 512}}

The ``conditions`` are fields of :class:`Conditions`. If they are a list, settings are compared under each of them.
Options of the command line replace what a file says.
"""

import ast
import hashlib
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import yaml
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppo_variants import recipes
from sb3_ppo_variants.arguments import list_arguments
from sb3_ppo_variants.compare.options import ALGORITHM_PATHS, DEFAULT_ALGORITHMS, EXAMPLE, MASKABLE_PPO
from sb3_ppo_variants.compare.records import to_plain
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes.hyperparameters import Hyperparameters, evaluate_python
from sb3_ppo_variants.saving.plain import Values

# The package's comparisons.
PRESETS = Path(__file__).parent / "presets"
# Arguments that a comparison does not take as hyperparameters, with the reason or the option to use instead.
NO_PART = "it does not change what is learned"
RESERVED = {
    "env": "use --envs",
    "seed": "use --seeds",
    "n_timesteps": "use --timesteps",
    "verbose": NO_PART,
    "tensorboard_log": NO_PART,
    "stats_window_size": NO_PART,
    "_init_setup_model": NO_PART,
    "data_parallel": "each run is one process",
    "fast_envs": "use --fast-envs",
}
# Hyperparameters of a comparison that are not arguments of the algorithm.
COMPARED_ENVIRONMENT_KEYS = tuple(name for name in recipes.ENVIRONMENT_KEYS if name not in RESERVED)
# Conditions that only some records contain.
LATER = ("protocol", "switched", "resume_every")


@dataclass(frozen=True)
class Setting:
    """An algorithm (a key of ``ALGORITHM_PATHS`` or ``module:Class``), its arguments and maybe its own protocol."""

    name: str
    arguments: dict[str, object] = field(default_factory=dict)
    protocol: str | None = None

    @property
    def label(self) -> str:
        """The setting in words."""
        named = self.arguments | ({} if self.protocol is None else {"protocol": self.protocol})
        return f"{self.name} {', '.join(f'{name}={value}' for name, value in sorted(named.items()))}".strip()

    @property
    def path(self) -> str:
        """The import path of the algorithm, ``module:Class``."""
        return ALGORITHM_PATHS.get(self.name, self.name)


def own_protocol(label: str) -> str | None:
    """Find the protocol that the setting with a label has of its own."""
    found = re.search(r"[ ,] ?protocol=([\w-]+)", label)
    return found and found[1]


def split(text: str) -> Setting:
    """Split ``name`` or ``name:argument=value,...`` into the parts of a setting, whether or not it exists.

    There may be a space instead of the colon, as in the labels of settings.
    """
    name, *rest = re.split(r"\s*[:\s]\s*(?=\w+\s*=)", text.strip(), maxsplit=1)
    arguments = assignments(rest[0]) if rest else {}
    protocol = arguments.pop("protocol", None)
    return Setting(name, arguments, None if protocol is None else str(protocol))


def read_setting(text: str) -> Setting:
    """Parse a text that :func:`split` splits into a setting, where the name may also be ``module:Class``."""
    setting = split(text)
    if setting.protocol is not None and setting.protocol not in recipes.PROTOCOLS:
        names = ", ".join(recipes.PROTOCOLS)
        raise ArgumentError(f"protocol={setting.protocol} in {text} is none of the protocols: {names}")
    known = list_arguments(load_class(setting.path))
    for argument in setting.arguments:
        if argument in RESERVED:
            raise ArgumentError(f"{argument} cannot be an argument of a setting, as in {text}: {RESERVED[argument]}")
        if argument not in known and argument not in COMPARED_ENVIRONMENT_KEYS:
            names = ", ".join([*sorted(known.keys() - RESERVED.keys()), *COMPARED_ENVIRONMENT_KEYS, "protocol"])
            raise ArgumentError(f"{setting.name} has no argument {argument}; it has {names}")
    return setting


def assignments(text: str) -> dict[str, object]:
    """Parse ``name=value,name=value``, where a value is a Python literal, ``inf`` or text like ``SPO(0.2)``."""
    parts: list[str] = []
    for part in re.split(r",(?=\s*[A-Za-z_]\w*\s*=)", text):
        # A comma within brackets is part of a value.
        if parts and sum(map(parts[-1].count, "([{")) > sum(map(parts[-1].count, ")]}")):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    found: dict[str, object] = {}
    for part in parts:
        name, _, value = (word.strip() for word in part.partition("="))
        if not (name.isidentifier() and value):
            raise ArgumentError(f"{text!r} must be name=value, or several of them separated by commas")
        if name in found:
            raise ArgumentError(f"{name} is given more than once in {text!r}")
        # Infinity has no literal. The commands in reports name it so too.
        found[name] = math.inf if value == "inf" else value
        with suppress(ValueError, SyntaxError):
            found[name] = ast.literal_eval(value)
    return found


def load_class(path: str) -> type[BaseAlgorithm]:
    """Import the class at ``module:Class``, which must derive from SB3's ``BaseAlgorithm``."""
    module, _, name = path.partition(":")
    if not module or not name or module in ALGORITHM_PATHS:
        names = ", ".join(ALGORITHM_PATHS)
        raise ArgumentError(f"{path} is not a setting: name {names} or module:Class, and arguments as in {EXAMPLE}")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # The module's own code may raise anything.
        raise ArgumentError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, BaseAlgorithm)):
        raise ArgumentError(f"{path} is not an algorithm: it must derive from stable_baselines3's BaseAlgorithm")
    return found


def policy_for(setting: Setting, policy: object) -> object:
    """Find an algorithm's name for a policy: sb3-contrib's maskable policies are called ``MlpPolicy`` and so on."""
    return policy.removeprefix("Maskable") if setting.path == MASKABLE_PPO and isinstance(policy, str) else policy


class SettingsFile(NamedTuple):
    """Hyperparameters by environment, and the name of their file with a digest of its contents."""

    name: str
    entries: dict[str, Hyperparameters]


def read_file(path: Path) -> SettingsFile:
    """Read a YAML file of hyperparameters in the RL Zoo's format."""
    try:
        content = path.read_bytes()
        entries = evaluate_python(yaml.safe_load(content))
    except Exception as error:
        # What the file writes as Python is the user's own code, which may raise anything.
        allowed = "it must be a YAML file with a dict for each environment"
        raise ArgumentError(
            f"--hyperparams {path} cannot be read, {allowed}: {type(error).__name__}: {error}"
        ) from error
    return SettingsFile(f"{path.name} (sha256 {hashlib.sha256(content).hexdigest()[:12]})", entries)


@dataclass(frozen=True)
class Conditions:
    """The conditions that all settings of a comparison share, as the options of the command line.

    :raises ArgumentError: if ``normalize`` and ``parameters`` contradict each other
    """

    preset: str | None = None
    timesteps: int | None = None
    entry: str | None = None
    file: SettingsFile | None = None
    # Hyperparameters that replace those of the entry, the file or the protocol.
    parameters: Hyperparameters = field(default_factory=dict)
    normalize: bool | None = None
    anneal: bool | None = None
    protocol: str | None = None
    # What differs from the protocol, in words.
    switched: str | None = None
    # The steps between the checkpoints of a run, each of which begins new episodes.
    resume_every: int | None = None

    def __post_init__(self) -> None:
        given = self.parameters.get("normalize", self.normalize)
        # VecNormalize without arguments normalises too.
        if self.normalize is not None and (given == {} or bool(given)) != self.normalize:
            option = "--normalize" if self.normalize else "--no-normalize"
            raise ArgumentError(f"-p normalize={given} contradicts {option}; pass only one of them")

    @property
    def rules(self) -> recipes.Protocol:
        """The protocol; if there is none, one that changes nothing."""
        return recipes.Protocol("", {}) if self.protocol is None else recipes.PROTOCOLS[self.protocol]

    def description(self) -> Values:
        """Return the conditions as JSON-serialisable values, with the name of the file instead of its contents."""
        parameters = to_plain("parameters", self.parameters)
        described = {**asdict(self), "file": self.file and self.file.name, "parameters": parameters}
        # Records that lack these still match if they are None.
        return {k: v for k, v in described.items() if v is not None or k not in LATER}


@dataclass(frozen=True)
class Config:
    """A comparison: the texts of its settings, for :func:`read_setting`, and the rest."""

    settings: Sequence[str] = tuple(DEFAULT_ALGORITHMS)
    envs: Sequence[str] = ("CartPole-v1",)
    seeds: int = 3
    conditions: Sequence[Conditions] = (Conditions(),)


def list_presets() -> list[str]:
    """List the names of the package's comparisons."""
    return sorted(path.stem for path in PRESETS.glob("*.yml"))


def read_config(name: str) -> Config:
    """Read a comparison.

    :param name: of one of the package's comparisons, or the path of a YAML file
    :raises ArgumentError: if there is no such file, or it does not describe a comparison
    """
    path = PRESETS / f"{name}.yml" if name in list_presets() else Path(name)
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        preset, shared = str(found.pop("name", path.stem)), found.pop("conditions", {})
        for key in {"settings", "envs"} & found.keys():
            if not (isinstance(found[key], list) and found[key] and all(isinstance(text, str) for text in found[key])):
                raise ValueError(f"{key} must be a list of texts, not {found[key]!r}")
        listed = shared if isinstance(shared, list) else [shared]
        return Config(**found, conditions=[Conditions(preset, **each) for each in listed])
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        names = ", ".join(list_presets())
        raise ArgumentError(f"--config {name} is neither {names} nor a YAML file of a comparison: {error}") from error
