"""The settings to compare, the conditions that they share, and the hyperparameters that result."""

import ast
import hashlib
import inspect
import math
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import NamedTuple

import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants import recipes
from sb3_ppo_variants.arguments import list_arguments
from sb3_ppo_variants.compare.options import ALGORITHM_PATHS, EXAMPLE, MASKABLE_PPO
from sb3_ppo_variants.compare.records import to_plain
from sb3_ppo_variants.errors import ArgumentError, installation
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.recipes.hyperparameters import Hyperparameters, evaluate_python
from sb3_ppo_variants.saving.plain import Values

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
# The arguments of this package's classes that every record contains. Those that the classes gained later are recorded
# if they are not at their defaults, so that earlier runs keep their names.
RECORDED = frozenset({
    "policy", "learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range",
    "clip_range_vf", "normalize_advantage", "ent_coef", "vf_coef", "max_grad_norm", "use_sde", "sde_sample_freq",
    "rollout_buffer_class", "rollout_buffer_kwargs", "target_kl", "policy_kwargs", "device", "fast", "updates",
    "desired_kl", "kl_coef", "objective",
})  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """An algorithm (a key of ``ALGORITHM_PATHS`` or ``module:Class``), its arguments and maybe its own protocol."""

    name: str
    arguments: dict[str, object] = field(default_factory=dict)
    protocol: str | None = None

    @property
    def label(self) -> str:
        """The setting in words."""
        named = self.arguments if self.protocol is None else {**self.arguments, "protocol": self.protocol}
        listed = ", ".join(f"{name}={value}" for name, value in sorted(named.items()))
        return f"{self.name} {listed}".strip()

    @property
    def path(self) -> str:
        """The import path of the algorithm, ``module:Class``."""
        return ALGORITHM_PATHS.get(self.name, self.name)


def own_protocol(label: str) -> str | None:
    """Find the protocol that the setting with a label has of its own."""
    found = re.search(r"[ ,] ?protocol=([\w-]+)", label)
    return found and found[1]


def has_argument(label: str, name: str) -> bool:
    """Whether the setting with a label has an argument of its own."""
    return re.search(rf"[ ,] ?{name}=", label) is not None


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
        extra = f"; {installation('contrib')}" if module == "sb3_contrib" else ""
        raise ArgumentError(f"{path} cannot be imported: {type(error).__name__}: {error}{extra}") from error
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
    """Read a yml or py file of hyperparameters in the RL Zoo's format."""
    try:
        content = path.read_bytes()
        found = run_path(str(path))["hyperparams"] if path.suffix == ".py" else yaml.safe_load(content)
        entries = evaluate_python(found)
    except Exception as error:
        # A py file is the user's own code, which may raise anything.
        allowed = "It must be a yml file, or a py file that defines hyperparams, with a dict for each environment."
        problem = f"--hyperparams {path} cannot be read: {type(error).__name__}: {error}"
        raise ArgumentError(f"{problem}\n{allowed}") from error
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
            (named,) = write_option("normalize", self.normalize)
            raise ArgumentError(f"-p normalize={given} contradicts {named}; pass only one of them")

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


def write_option(name: str, value: object) -> list[str]:
    """Write the words of the command line that give a condition this value."""
    option = name.replace("_", "-")
    return [f"--{option}" if value else f"--no-{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]


class Resolved(NamedTuple):
    """All hyperparameters of a run, its steps, and the hyperparameters that its algorithm does not use."""

    hyperparameters: Hyperparameters
    timesteps: int
    dropped: list[str]


def resolve(setting: Setting, env_id: str, conditions: Conditions) -> Resolved:
    """Determine the hyperparameters of a setting in an environment, of which none may be unknown."""
    if setting.protocol is not None:
        # A file has entries of its own.
        entry = conditions.entry or ("mujoco" if conditions.file is None else None)
        conditions = replace(conditions, protocol=setting.protocol, entry=entry, normalize=None, anneal=None)
    protocol, algorithm = conditions.rules, load_class(setting.path)
    known = list_arguments(algorithm)
    shared, timesteps = share(setting, env_id, conditions)
    applicable = {*known, *COMPARED_ENVIRONMENT_KEYS}
    if known.get("clip_range") is None:
        # A penalised objective that is also clipped is a different one, which a setting must request itself.
        applicable.discard("clip_range")
    dropped = [name for name in shared if name not in applicable]
    if conditions.file is None and not issubclass(algorithm, OnPolicyAlgorithm):
        # The recipes are for PPO. In other kinds of algorithms, an argument of the same name may mean something else.
        dropped += sorted(known.keys() & shared.keys() - {"policy", *COMPARED_ENVIRONMENT_KEYS, *conditions.parameters})
    given = {name: value for name, value in shared.items() if name not in dropped} | protocol.under(setting.arguments)
    hyperparameters = _without_known_defaults(algorithm, _defaults(algorithm, conditions) | given)
    hyperparameters["policy"] = policy_for(setting, hyperparameters.get("policy"))
    if conditions.anneal is not None and "learning_rate" not in setting.arguments:
        if "learning_rate" not in hyperparameters:
            (named,) = write_option("anneal", conditions.anneal)
            raise ArgumentError(f"{named} is for algorithms with a learning_rate, which {setting.name} does not have")
        hyperparameters["learning_rate"] = _anneal(hyperparameters["learning_rate"], conditions.anneal)
    if conditions.anneal is not False:
        hyperparameters = protocol.anneal(hyperparameters)
    if not issubclass(algorithm, PPOBase):
        if "normalize_advantage" not in setting.arguments and hyperparameters.get("normalize_advantage") == "rollout":
            instead = f"leave it out, or give it its own protocol, as in {setting.name}:protocol=sb3"
            raise ArgumentError(f"{setting.name} cannot normalise advantages over the rollout: {instead}")
        if hyperparameters.get("max_grad_norm", 0) is None:
            hyperparameters["max_grad_norm"] = math.inf  # Others than this package's algorithms need a number.
    return Resolved(hyperparameters, timesteps, [name for name in dropped if name not in setting.arguments])


def _defaults(algorithm: type[BaseAlgorithm], conditions: Conditions) -> Hyperparameters:
    """Return the arguments of an algorithm that have defaults, and those that the conditions may anneal."""
    # Of the arguments that the class takes as **kwargs, it may set some itself, so they cannot all be passed.
    own = {p.name: p.default for p in inspect.signature(algorithm).parameters.values() if p.default is not p.empty}
    known = list_arguments(algorithm)
    names = [*conditions.rules.annealed, *([] if conditions.anneal is None else ["learning_rate"])]
    annealed = {name: value for name in names if isinstance(value := known.get(name), float | int)}
    # Networks this small are fastest on a CPU, and runs then use the same device on every machine.
    return {**own, **annealed, "device": "cpu"}


def _without_known_defaults(algorithm: type[BaseAlgorithm], hyperparameters: Hyperparameters) -> Hyperparameters:
    """Leave out what is not recorded: arguments for other purposes, and the defaults of this package's own."""
    package = __name__.partition(".")[0]
    ours = next((base for base in algorithm.__mro__ if base.__module__.partition(".")[0] == package), None)
    defaults = {} if ours is None else list_arguments(ours)
    omitted = {n for n, value in hyperparameters.items() if n in defaults.keys() - RECORDED and value == defaults[n]}
    return {name: value for name, value in hyperparameters.items() if name not in RESERVED.keys() | omitted}


def share(setting: Setting, env_id: str, conditions: Conditions) -> tuple[Hyperparameters, int]:
    """Take the hyperparameters without the setting's own arguments, and the steps of a run."""
    # An algorithm without hyperparameters of its own uses those of PPOClip. All train for as many steps as PPO.
    name = setting.name if setting.name in recipes.ALGORITHMS else "ppo_clip"
    if conditions.file is None:
        shared = recipes.select(recipes.entries_of(name), env_id, conditions.entry)
    else:
        file = f"--hyperparams {conditions.file.name}"
        shared = recipes.select(conditions.file.entries, env_id, conditions.entry, file)
    recommended = shared.pop("n_timesteps", None)
    if conditions.file is None and setting.path in recipes.BASELINES:
        own = recipes.entries_of(setting.path)
        if conditions.entry not in (None, *own):
            raise ArgumentError(
                f"--entry {conditions.entry} has no hyperparameters for {setting.name}, which has {', '.join(own)}"
            )
        shared = recipes.select(own, env_id, conditions.entry)
    timesteps = recommended if conditions.timesteps is None else conditions.timesteps
    if not isinstance(timesteps, int | float) or timesteps < 1:
        given = "n_timesteps of its hyperparameters" if conditions.timesteps is None else "--timesteps"
        raise ArgumentError(f"a run in {env_id} must take at least 1 step; {given} is {timesteps!r}")
    shared = conditions.rules.over(shared)
    if conditions.normalize is not None:
        shared["normalize"] = conditions.normalize
    shared |= conditions.rules.under(conditions.parameters)
    for name in shared.keys() & RESERVED.keys():
        raise ArgumentError(f"{name} cannot be a hyperparameter of a comparison: {RESERVED[name]}")
    return shared, int(timesteps)


def _anneal(learning_rate: object, anneal: bool) -> str | float:
    """Return the step size, annealed linearly to 0 or constant."""
    if isinstance(learning_rate, float | int):
        return f"lin_{learning_rate!r}" if anneal else learning_rate
    with suppress(ValueError):
        if isinstance(learning_rate, str) and learning_rate.startswith("lin_"):
            constant = float(learning_rate.removeprefix("lin_"))
            return learning_rate if anneal else constant
    raise ArgumentError(f"--anneal and --no-anneal need a learning_rate like 3e-4 or lin_3e-4, not {learning_rate!r}")
