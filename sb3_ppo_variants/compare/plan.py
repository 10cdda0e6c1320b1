"""What is compared, as command lines and YAML files give it, and the runs of it, all planned before the first starts.

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
import inspect
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants import recipes
from sb3_ppo_variants.arguments import Values, list_arguments
from sb3_ppo_variants.compare import ALGORITHM_PATHS, DEFAULT_ALGORITHMS, EXAMPLE, MASKABLE_PPO
from sb3_ppo_variants.compare.records import FORMAT, RANDOM, digest, to_plain
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.recipes.recipe import Hyperparameters, evaluate_python
from sb3_ppo_variants.variants import PPOClip

# The package's comparisons.
PRESETS = {path.stem: path for path in sorted(Path(__file__).with_name("presets").glob("*.yml"))}
# Arguments that a comparison does not take as hyperparameters, with the reason or the option to use instead.
NO_PART = "it does not change what is learned"
RESERVED = {
    "env": "use --envs", "seed": "use --seeds", "n_timesteps": "use --timesteps", "verbose": NO_PART,
    "tensorboard_log": NO_PART, "stats_window_size": NO_PART, "_init_setup_model": NO_PART,
    "data_parallel": "each run is one process", "fast_envs": "use --fast-envs",
}  # fmt: skip
# Hyperparameters of a comparison that are not arguments of the algorithm.
COMPARED_ENVIRONMENT_KEYS = tuple(name for name in recipes.ENVIRONMENT_KEYS if name not in RESERVED)
# The arguments of this package's classes that every record contains. Those that the classes gained later are recorded
# if they are not at their defaults, so that earlier runs keep their names.
RECORDED = frozenset({
    "policy", "learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range",
    "clip_range_vf", "normalize_advantage", "ent_coef", "vf_coef", "max_grad_norm", "use_sde", "sde_sample_freq",
    "rollout_buffer_class", "rollout_buffer_kwargs", "target_kl", "policy_kwargs", "device", "fast", "updates",
    "desired_kl", "kl_coef", "objective",
})  # fmt: skip
# Conditions that only some records contain.
LATER = ("protocol", "switched", "resume_every")
# The run of the random policy ends after the episodes that a score needs, or after this many steps.
RANDOM_TIMESTEPS = 1_000_000


# Settings and conditions


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

    def name_of_policy(self, policy: object) -> object:
        """Return the algorithm's name for a policy: sb3-contrib calls its maskable ones ``MlpPolicy`` and so on."""
        return policy.removeprefix("Maskable") if self.path == MASKABLE_PPO and isinstance(policy, str) else policy


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
    known = list_arguments(load_class(setting.path)).keys() - RESERVED.keys() | {*COMPARED_ENVIRONMENT_KEYS}
    for argument in setting.arguments.keys() - known:
        has = f"it has {', '.join(sorted(known))}, protocol"
        raise ArgumentError(f"{argument} cannot be an argument of {setting.name}: {RESERVED.get(argument, has)}")
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


class SettingsFile(NamedTuple):
    """Hyperparameters by environment, and the name of their file with a digest of its contents."""

    name: str
    entries: dict[str, Hyperparameters]


def read_file(path: Path) -> SettingsFile:
    """Read a YAML file of hyperparameters in the RL Zoo's format."""
    content = path.read_bytes()
    try:
        entries = evaluate_python(yaml.safe_load(content))
    except Exception as error:  # What the file writes as Python may raise anything.
        allowed = f"it must be a YAML file with a dict for each environment: {type(error).__name__}: {error}"
        raise ArgumentError(f"--hyperparams {path} cannot be read, {allowed}") from error
    return SettingsFile(f"{path.name} (sha256 {hashlib.sha256(content).hexdigest()[:12]})", entries)


@dataclass(frozen=True)
class Conditions:
    """The conditions that all settings of a comparison share, as the options of the command line."""

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

    settings: Sequence[str] = DEFAULT_ALGORITHMS
    envs: Sequence[str] = ("CartPole-v1",)
    seeds: int = 3
    conditions: Sequence[Conditions] = (Conditions(),)


def read_config(name: str) -> Config:
    """Read a comparison.

    :param name: of one of the package's comparisons, or the path of a YAML file
    :raises ArgumentError: if there is no such file, or it does not describe a comparison
    """
    path = PRESETS.get(name, Path(name))
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        preset, shared = str(found.pop("name", path.stem)), found.pop("conditions", {})
        for key in {"settings", "envs"} & found.keys():
            if not (isinstance(found[key], list) and found[key] and all(isinstance(text, str) for text in found[key])):
                raise ValueError(f"{key} must be a list of texts, not {found[key]!r}")
        listed = shared if isinstance(shared, list) else [shared]
        return Config(**found, conditions=[Conditions(preset, **each) for each in listed])
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        names = ", ".join(PRESETS)
        raise ArgumentError(f"--config {name} is neither {names} nor a YAML file of a comparison: {error}") from error


# The hyperparameters of a run


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
    protocol, algorithm, anneal = conditions.rules, load_class(setting.path), conditions.anneal
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
    annealed = [*protocol.annealed, *([] if anneal is None else ["learning_rate"])]
    hyperparameters = _without_known_defaults(algorithm, _defaults(algorithm, annealed) | given)
    hyperparameters["policy"] = setting.name_of_policy(hyperparameters.get("policy"))
    if anneal is not None and "learning_rate" not in setting.arguments:
        hyperparameters["learning_rate"] = _anneal(hyperparameters.get("learning_rate"), anneal)
    if anneal is not False:
        hyperparameters = protocol.anneal(hyperparameters)
    if not issubclass(algorithm, PPOBase):
        if "normalize_advantage" not in setting.arguments and hyperparameters.get("normalize_advantage") == "rollout":
            instead = f"leave it out, or give it its own protocol, as in {setting.name}:protocol=sb3"
            raise ArgumentError(f"{setting.name} cannot normalise advantages over the rollout: {instead}")
        if hyperparameters.get("max_grad_norm", 0) is None:
            hyperparameters["max_grad_norm"] = math.inf  # Others than this package's algorithms need a number.
    return Resolved(hyperparameters, timesteps, [name for name in dropped if name not in setting.arguments])


def share(setting: Setting, env_id: str, conditions: Conditions) -> tuple[Hyperparameters, int]:
    """Take the hyperparameters without the setting's own arguments, and the steps of a run."""
    # An algorithm without hyperparameters of its own uses those of PPOClip. All train for as many steps as PPO.
    entries, file = recipes.entries_of(setting.name if setting.name in recipes.ALGORITHMS else "ppo_clip"), None
    if conditions.file is not None:
        entries, file = conditions.file.entries, f"--hyperparams {conditions.file.name}"
    shared = recipes.select(entries, env_id, conditions.entry, file)
    timesteps = shared.pop("n_timesteps", None)
    if file is None and setting.path in recipes.BASELINES:
        shared = recipes.select(recipes.entries_of(setting.path), env_id, conditions.entry, setting.name)
    if conditions.timesteps is not None:
        timesteps = conditions.timesteps
    if not isinstance(timesteps, int | float) or timesteps < 1:
        raise ArgumentError(f"a run in {env_id} must take at least 1 step; --timesteps or n_timesteps is {timesteps!r}")
    shared = conditions.rules.over(shared)
    if conditions.normalize is not None:
        shared["normalize"] = conditions.normalize
    shared |= conditions.rules.under(conditions.parameters)
    for name in shared.keys() & RESERVED.keys():
        raise ArgumentError(f"{name} cannot be a hyperparameter of a comparison: {RESERVED[name]}")
    return shared, int(timesteps)


def _defaults(algorithm: type[BaseAlgorithm], annealed: Sequence[str]) -> Hyperparameters:
    """Return the arguments of an algorithm that have defaults, and those of its bases that may be annealed."""
    # Of the arguments that the class takes as **kwargs, it may set some itself, so they cannot all be passed.
    own = {p.name: p.default for p in inspect.signature(algorithm).parameters.values() if p.default is not p.empty}
    known = list_arguments(algorithm)
    numbers = {name: value for name in annealed if isinstance(value := known.get(name), float | int)}
    # Networks this small are fastest on a CPU, and runs then use the same device on every machine.
    return {**own, **numbers, "device": "cpu"}


def _without_known_defaults(algorithm: type[BaseAlgorithm], hyperparameters: Hyperparameters) -> Hyperparameters:
    """Leave out what is not recorded: arguments for other purposes, and the defaults of this package's own."""
    package = __name__.partition(".")[0]
    ours = next((base for base in algorithm.__mro__ if base.__module__.partition(".")[0] == package), None)
    defaults = {} if ours is None else list_arguments(ours)
    omitted = {n for n, value in hyperparameters.items() if n in defaults.keys() - RECORDED and value == defaults[n]}
    return {name: value for name, value in hyperparameters.items() if name not in RESERVED.keys() | omitted}


def _anneal(learning_rate: object, anneal: bool) -> object:
    """Return the step size, annealed linearly to 0 or constant."""
    text = str(learning_rate)
    try:
        constant = float(text.removeprefix("lin_"))
    except ValueError:
        allowed = f"a learning_rate like 3e-4 or lin_3e-4, not {learning_rate!r}"
        raise ArgumentError(f"--anneal and --no-anneal need {allowed}") from None
    if text.startswith("lin_") == anneal:
        return learning_rate
    return f"lin_{text}" if anneal else constant


# Runs


@dataclass(frozen=True)
class Run:
    """One run, with everything that its result depends on."""

    # The setting in words, or ``RANDOM``.
    label: str
    # ``module:Class``, empty for the random policy.
    algorithm: str
    env: str
    seed: int
    timesteps: int
    # Those of the algorithm and the environment, in the RL Zoo's format.
    hyperparameters: Hyperparameters
    conditions: Values

    @property
    def identity(self) -> Values:
        """The fields of the run, as JSON-serialisable values."""
        return {**asdict(self), "hyperparameters": to_plain("hyperparameters", self.hyperparameters)}

    @property
    def name(self) -> str:
        """A name for the run's files: a readable part, and the digest of the run's identity."""
        readable = re.sub(r"[^A-Za-z0-9_.=-]", "_", f"{self.label}-{self.env}-{self.seed}")
        return f"{readable[:100]}-{digest({'format': FORMAT, **self.identity})}"

    def recipe(self, fast_envs: bool = False) -> recipes.Recipe:
        """Make the recipe of the run.

        :param fast_envs: whether it creates the fastest environments, which give the same results
        """
        recipes.check_registered(self.env)
        settings = {**self.hyperparameters, "n_timesteps": self.timesteps, "fast_envs": fast_envs}
        return recipes.parse(load_class(self.algorithm or ALGORITHM_PATHS["ppo_clip"]), self.env, settings)


class Plan(NamedTuple):
    """The runs in the order in which they start, and notes about them for the user."""

    runs: list[Run]
    notes: list[str]


def make_plan(settings: list[Setting], envs: Sequence[str], seeds: int, conditions: Conditions) -> Plan:
    """Plan all settings in all environments with all seeds, which are 0, 1, ...

    The seed is the outermost loop, so that a plan that is cut short has every setting in every environment.
    """
    if seeds < 1:
        raise ArgumentError(f"--seeds must be at least 1, not {seeds}")
    envs = list(dict.fromkeys(map(recipes.full_id, envs)))
    settings = list({setting.label: setting for setting in settings}.values())
    if (every := conditions.resume_every) is not None:
        if every < 1:
            raise ArgumentError(f"--resume-every must be at least 1, not {every}")
        if others := [each.label for each in settings if not issubclass(load_class(each.path), PPOBase)]:
            cannot = f"{', '.join(others)} cannot continue a run: leave it out of --algos"
            raise ArgumentError(f"--resume-every {every} needs algorithms of this package; {cannot}")
    described = conditions.description()
    randoms, first, notes = [], [], []
    for env in envs:
        shared, _ = share(Setting("ppo_clip"), env, conditions)
        of_env = {name: value for name, value in shared.items() if name in COMPARED_ENVIRONMENT_KEYS}
        randoms.append(Run(RANDOM, "", env, 0, RANDOM_TIMESTEPS, {**of_env, "n_envs": 1}, described))
        found = [(setting, resolve(setting, env, conditions)) for setting in settings]
        # Others are arguments of PPO.
        if unknown := set.intersection(*(set(each.dropped) for _, each in found)) - list_arguments(PPOClip).keys():
            has = {name for setting in settings for name in list_arguments(load_class(setting.path))} - RESERVED.keys()
            known = ", ".join([*COMPARED_ENVIRONMENT_KEYS, *sorted(has)])
            raise ArgumentError(f"no setting has a hyperparameter {min(unknown)}; they have {known}")
        runs = [Run(setting.label, setting.path, env, 0, n, given, described) for setting, (given, n, _) in found]
        _refuse_what_compares_nothing(runs)
        first += runs
        notes += [f"{s.label} in {env} does not use {', '.join(each.dropped)}" for s, each in found if each.dropped]
    return Plan([*randoms, *(replace(run, seed=seed) for seed in range(seeds) for run in first)], notes)


def _refuse_what_compares_nothing(runs: Sequence[Run]) -> None:
    """Refuse runs in an environment of which two are the same, or train for different numbers of steps."""
    for (one, identity), (other, same) in combinations([(run, replace(run, label="").identity) for run in runs], 2):
        if one.timesteps != other.timesteps:
            raise ArgumentError(
                f"{one.label} would train for {one.timesteps:,} steps in {one.env}, and {other.label} for "
                f"{other.timesteps:,}: choose one number with --timesteps"
            )
        # Equality, unlike a digest, takes 3 and 3.0 for the same number.
        if identity == same:
            raise ArgumentError(f"{other.label} and {one.label} are the same setting in {one.env}; name one of them")


def merge_plans(plans: Iterable[Plan]) -> Plan:
    """Merge plans: the first seed runs in the first environment under all conditions, then in the next environment."""
    plans = list(plans)
    # Options may have made two conditions the same.
    runs = [*{run.name: run for plan in plans for run in plan.runs}.values()]
    if len(plans) > 1:
        envs = list(dict.fromkeys(run.env for run in runs))
        runs.sort(key=lambda run: (run.seed, envs.index(run.env)))
    return Plan(runs, list(dict.fromkeys(note for plan in plans for note in plan.notes)))
