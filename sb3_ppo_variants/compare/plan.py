"""What is compared, as command lines and YAML files give it, and the runs of it, all planned before the first starts.

A comparison in a file has these keys, all of which may be missing::

    name: of the comparison (default: the name of the file)
    settings: [ppo_clip, "ppo_fixed_kl:kl_coef=1", sb3_ppo]
    envs: [CartPole-v1]
    seeds: 3
    names: {ppo_clip: Clipped (ours)}
    conditions: {timesteps: 50000, normalize: true, parameters: {n_steps: 512}}

The ``conditions`` are fields of :class:`Conditions`. If they are a list, settings are compared under each of them.
Options of the command line replace what a file says.
"""

import argparse
import ast
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path

import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants import recipes
from sb3_ppo_variants.arguments import Values, hint_at, list_arguments
from sb3_ppo_variants.compare import ALGORITHM_PATHS, BASELINE, DEFAULT_ALGORITHMS, EXAMPLE, MASKABLE_PPO, PRESETS
from sb3_ppo_variants.compare.records import FORMAT, RANDOM, digest, to_plain
from sb3_ppo_variants.errors import ArgumentError, installation
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.recipes import Hyperparameters
from sb3_ppo_variants.variants import PPOClip

# Arguments that a comparison does not take as hyperparameters, with the reason or the option to use instead.
NO_PART = "it does not change what is learned"
RESERVED = {
    "env": "use --envs", "seed": "use --seeds", "n_timesteps": "use --timesteps", "verbose": NO_PART,
    "tensorboard_log": NO_PART, "stats_window_size": NO_PART, "_init_setup_model": NO_PART,
    "data_parallel": "each run is one process", "fast_envs": "use --fast-envs",
}  # fmt: skip
# Hyperparameters of a comparison that are not arguments of the algorithm.
OF_ENVIRONMENT = tuple(name for name in recipes.ENVIRONMENT_KEYS if name not in RESERVED)
# Arguments and conditions that are recorded where they are given, and otherwise are not part of a run's name.
ONLY_GIVEN = {"stop", "value_loss", "protocol", "switched", "resume_every"}
# The run of the random policy ends after the episodes that a score needs, or after this many steps.
RANDOM_TIMESTEPS = 1_000_000


@dataclass(frozen=True)
class Setting:
    """An algorithm (a key of ``ALGORITHM_PATHS`` or ``module:Class``), its arguments and maybe its own protocol."""

    name: str
    arguments: Hyperparameters = field(default_factory=dict)
    protocol: str | None = None

    @property
    def label(self) -> str:
        """The setting in words."""
        named = self.arguments | ({"protocol": self.protocol} if self.protocol else {})
        return f"{self.name} {', '.join(f'{name}={value}' for name, value in sorted(named.items()))}".strip()

    @property
    def path(self) -> str:
        """The import path of the algorithm, ``module:Class``."""
        return ALGORITHM_PATHS.get(self.name, self.name)

    def name_of_policy(self, policy: object) -> object:
        """Return the algorithm's name for a policy: sb3-contrib calls its maskable ones ``MlpPolicy`` and so on."""
        return policy.removeprefix("Maskable") if self.path == MASKABLE_PPO and isinstance(policy, str) else policy


def own_protocol(label: str) -> str | None:
    """Find the protocol that a setting has of its own."""
    return next(iter(re.findall(r"[ ,] ?protocol=([\w-]+)", label)), None)


def read_setting(text: str) -> Setting:
    """Read a setting from ``name`` or ``name:argument=value,...``, where a space may stand for the last colon."""
    name, *rest = re.split(r"\s*[:\s]\s*(?=\w+\s*=)", text.strip(), maxsplit=1)
    arguments = assignments(rest[0]) if rest else {}
    protocol = arguments.pop("protocol", None)
    recipes.find_protocol(protocol)
    setting = Setting(name, arguments, protocol)
    known = list_arguments(load_class(setting.path)).keys() - RESERVED.keys() | {*OF_ENVIRONMENT}
    for argument in arguments.keys() - known:
        has = f"it has {', '.join(sorted(known))}, protocol{hint_at(argument, [*known])}"
        raise ArgumentError(f"{argument} cannot be an argument of {name}: {RESERVED.get(argument, has)}")
    return setting


def assignments(text: str) -> Hyperparameters:
    """Parse ``name=value,name=value``, where a value is a Python literal, ``inf`` or text like ``SPO(0.2)``."""
    parts: list[str] = []
    for part in re.split(r",(?=\s*[A-Za-z_]\w*\s*=)", text):
        # A comma within brackets is part of a value.
        if parts and sum(map(parts[-1].count, "([{")) > sum(map(parts[-1].count, ")]}")):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    found: Hyperparameters = {}
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
        classes = {algorithm.partition(":")[2].lower(): known for known, algorithm in ALGORITHM_PATHS.items()}
        close = get_close_matches(path.lower(), [*classes, *ALGORITHM_PATHS], n=1)
        hint = "".join(f" Did you mean {classes.get(each, each)}?" for each in close)
        names = ", ".join(ALGORITHM_PATHS)
        raise ArgumentError(
            f"{path} is not a setting: name {names} or module:Class, and arguments as in {EXAMPLE}.{hint}"
        )
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # The module's own code may raise anything.
        raise ArgumentError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, BaseAlgorithm)):
        raise ArgumentError(f"{path} is not an algorithm: it must derive from stable_baselines3's BaseAlgorithm")
    return found


@dataclass(frozen=True)
class Conditions:
    """The conditions that all settings of a comparison share, as the options of the command line."""

    preset: str | None = None
    timesteps: int | None = None
    entry: str | None = None
    # The path of a YAML file of hyperparameters in the RL Zoo's format, which replace the recipes.
    file: str | None = None
    # Hyperparameters that replace those of the entry, the file or the protocol.
    parameters: Hyperparameters = field(default_factory=dict)
    normalize: bool | None = None
    anneal: bool | None = None
    protocol: str | None = None
    # What differs from the protocol, in words.
    switched: str | None = None
    # The steps between the checkpoints of a run, each of which begins new episodes.
    resume_every: int | None = None

    def under(self, protocol: str) -> "Conditions":
        """Return these conditions with a protocol, which is for the entry mujoco or for a file."""
        entry = self.entry or (None if self.file else "mujoco")
        return replace(self, protocol=protocol, entry=entry, normalize=None, anneal=None)

    def read_file(self) -> dict[str, Hyperparameters]:
        """Read the entries of the file."""
        try:
            return dict(yaml.safe_load(Path(str(self.file)).read_text()))
        except (yaml.YAMLError, TypeError, ValueError) as error:
            raise ArgumentError(f"--hyperparams {self.file} must be a dict for each environment: {error}") from error

    def description(self) -> Values:
        """Return the conditions as JSON-serialisable values, with a digest of the file's contents."""
        file = self.file and f"{Path(self.file).name} ({digest(self.read_file())})"
        described = {**asdict(self), "file": file, "parameters": to_plain("parameters", self.parameters)}
        return {name: value for name, value in described.items() if value is not None or name not in ONLY_GIVEN}


def say_conditions(conditions: Values) -> str:
    """Say under which protocol runs are made, if any, and what was changed in it."""
    protocol = conditions.get("protocol") and f"protocol {conditions['protocol']}"
    return ", ".join(filter(None, [protocol, conditions.get("switched")]))


@dataclass(frozen=True)
class Config:
    """A comparison: the texts of its settings, for :func:`read_setting`, and the rest."""

    settings: Sequence[str] = DEFAULT_ALGORITHMS
    envs: Sequence[str] = ("CartPole-v1",)
    seeds: int = 3
    conditions: Sequence[Conditions] = (Conditions(),)
    # By the label of a setting, what a report calls it.
    names: Mapping[str, str] = field(default_factory=dict)


def read_config(name: str) -> Config:
    """Read one of the package's comparisons, or that in a YAML file."""
    path = PRESETS.get(name, Path(name))
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        preset, shared = str(found.pop("name", path.stem)), found.pop("conditions", {})
        for key in {"settings", "envs"} & found.keys():
            if not (isinstance(found[key], list) and found[key] and all(isinstance(text, str) for text in found[key])):
                raise ValueError(f"{key} must be a list of texts, not {found[key]!r}")
        listed = shared if isinstance(shared, list) else [shared]
        found["names"] = {read_setting(text).label: str(called) for text, called in found.get("names", {}).items()}
        config = Config(**found, conditions=[Conditions(preset, **each) for each in listed])
        if unknown := config.names.keys() - {read_setting(text).label for text in config.settings}:
            raise ValueError(f"names has {min(unknown)}, which is not one of the settings")
        return config
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        names = ", ".join(PRESETS)
        raise ArgumentError(f"--config {name} is neither {names} nor a YAML file of a comparison: {error}") from error


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
    # Hyperparameters of the comparison that the algorithm does not use.
    unused: Sequence[str] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.label}, {self.env}, seed {self.seed}"

    @property
    def identity(self) -> Values:
        """What the run is, as JSON-serialisable values."""
        fields = {**asdict(self), "hyperparameters": to_plain("hyperparameters", self.hyperparameters)}
        return {name: value for name, value in fields.items() if name != "unused"}

    @property
    def name(self) -> str:
        """A name for the run's files: a readable part, and a digest."""
        readable = re.sub(r"[^A-Za-z0-9_.=-]", "_", f"{self.label}-{self.env}-{self.seed}")
        return f"{readable[:100]}-{digest({'format': FORMAT, **self.identity})}"

    def recipe(self, fast_envs: bool = False) -> recipes.Recipe:
        """Make the recipe of the run, maybe with the fastest environments, which give the same results."""
        settings = {**self.hyperparameters, "n_timesteps": self.timesteps, "fast_envs": fast_envs}
        return recipes.parse(load_class(self.algorithm or ALGORITHM_PATHS["ppo_clip"]), self.env, settings)


def resolve(setting: Setting, env: str, conditions: Conditions) -> Run:
    """Plan the run of a setting with seed 0."""
    algorithm, described, every = load_class(setting.path), conditions.description(), conditions.resume_every
    is_ours = issubclass(algorithm, PPOBase)
    if every is not None and every < 1:
        raise ArgumentError(f"--resume-every must be at least 1, not {every}")
    if every is not None and not is_ours:
        cannot = f"{setting.label} cannot continue a run: leave it out of --algos"
        raise ArgumentError(f"--resume-every {every} needs algorithms of this package; {cannot}")
    if setting.protocol is not None:
        conditions = conditions.under(setting.protocol)
    protocol, anneal = recipes.find_protocol(conditions.protocol), conditions.anneal
    selected, timesteps = _select(setting, env, conditions)
    normalize = {} if conditions.normalize is None else {"normalize": conditions.normalize}
    found = protocol.change(selected, {**normalize, **conditions.parameters, **setting.arguments})
    known = list_arguments(algorithm)
    unused = found.keys() - known.keys() - {*OF_ENVIRONMENT}
    if known.get("clip_range") is None:
        # A penalised objective that is also clipped is a different one, which a setting must request itself.
        unused.add("clip_range")
    if conditions.file is None and not issubclass(algorithm, OnPolicyAlgorithm):
        # The recipes are for PPO. In other kinds of algorithms, an argument of the same name may mean something else.
        unused |= known.keys() - {"policy", *OF_ENVIRONMENT, *conditions.parameters}
    dropped = [name for name in found if name in unused and name not in setting.arguments]
    annealed = [*protocol.annealed, *([] if anneal is None else ["learning_rate"])]
    hyperparameters = _defaults(algorithm, annealed) | {n: v for n, v in found.items() if n not in dropped}
    hyperparameters["policy"] = setting.name_of_policy(hyperparameters.get("policy"))
    if anneal is not None and "learning_rate" not in setting.arguments:
        hyperparameters["learning_rate"] = _anneal(hyperparameters.get("learning_rate"), anneal)
    if anneal is not False:
        hyperparameters = protocol.anneal(hyperparameters)
    advantages = None if "normalize_advantage" in setting.arguments else hyperparameters.get("normalize_advantage")
    if not is_ours and advantages == "rollout":
        instead = f"leave it out, or give it its own protocol, as in {setting.name}:protocol=sb3"
        raise ArgumentError(f"{setting.name} cannot normalise advantages over the rollout: {instead}")
    if not is_ours and hyperparameters.get("max_grad_norm", 0) is None:
        hyperparameters["max_grad_norm"] = math.inf  # Others than this package's algorithms need a number.
    return Run(setting.label, setting.path, env, 0, timesteps, hyperparameters, described, dropped)


def _select(setting: Setting, env: str, conditions: Conditions) -> tuple[Hyperparameters, int]:
    """Select the entry of a setting, and the steps of a run."""
    # An algorithm without hyperparameters of its own uses those of PPOClip. All train for as many steps as PPO.
    name = setting.name if setting.name in recipes.ALGORITHMS else "ppo_clip"
    entries = recipes.entries_of(name) if conditions.file is None else conditions.read_file()
    selected = recipes.select(entries, env, conditions.entry)
    timesteps = selected.pop("n_timesteps", None)
    if conditions.file is None and setting.path in recipes.BASELINES:
        selected = recipes.select(recipes.entries_of(setting.path), env, conditions.entry)
    for name in {*selected, *conditions.parameters} & RESERVED.keys():
        raise ArgumentError(f"{name} cannot be a hyperparameter of a comparison: {RESERVED[name]}")
    if conditions.timesteps is not None:
        timesteps = conditions.timesteps
    if not isinstance(timesteps, int | float) or timesteps < 1:
        raise ArgumentError(f"a run in {env} must take at least 1 step; --timesteps or n_timesteps is {timesteps!r}")
    return selected, int(timesteps)


def _defaults(algorithm: type[BaseAlgorithm], annealed: Sequence[str]) -> Hyperparameters:
    """Return the arguments of an algorithm that have defaults, and those of its bases that may be annealed."""
    # Of the arguments that the class takes as **kwargs, it may set some itself, so they cannot all be passed.
    own = {p.name: p.default for p in inspect.signature(algorithm).parameters.values() if p.default is not p.empty}
    known = list_arguments(algorithm)
    numbers = {name: value for name in annealed if isinstance(value := known.get(name), float | int)}
    # Networks this small are fastest on a CPU, and runs then use the same device on every machine.
    found = {**own, **numbers, "device": "cpu"}
    return {name: value for name, value in found.items() if name not in RESERVED.keys() | ONLY_GIVEN}


def _anneal(learning_rate: object, anneal: bool) -> object:
    """Return the step size, annealed linearly to 0 or constant."""
    text = str(learning_rate).removeprefix("lin_")
    try:
        constant = float(text)
    except ValueError:
        allowed = f"a learning_rate like 3e-4 or lin_3e-4, not {learning_rate!r}"
        raise ArgumentError(f"--anneal and --no-anneal need {allowed}") from None
    return f"lin_{text}" if anneal else constant


def make_plan(settings: Sequence[Setting], envs: Sequence[str], seeds: int, shared: Sequence[Conditions]) -> list[Run]:
    """Plan all settings in all environments under all conditions with all seeds, which are 0, 1, ...

    The seed is the outermost loop, so that a plan that is cut short has every setting in every environment.
    """
    if seeds < 1:
        raise ArgumentError(f"--seeds must be at least 1, not {seeds}")
    settings = list({setting.label: setting for setting in settings}.values())
    # The ids have the latest version, if they name none.
    envs = [f"{''.join(env.rpartition(':')[:2])}{recipes.registered(env).id}" for env in envs]
    first: list[Run] = []
    for env, each in product(envs, shared):
        ours = resolve(Setting("ppo_clip"), env, each)
        of_env = {name: value for name, value in ours.hyperparameters.items() if name in OF_ENVIRONMENT} | {"n_envs": 1}
        first.append(Run(RANDOM, "", env, 0, RANDOM_TIMESTEPS, of_env, ours.conditions))
        runs = [resolve(setting, env, each) for setting in settings]
        if unknown := set.intersection(*(set(run.unused) for run in runs)) - list_arguments(PPOClip).keys():
            has = {name for setting in settings for name in list_arguments(load_class(setting.path))} - RESERVED.keys()
            known, name = [*OF_ENVIRONMENT, *sorted(has)], min(unknown)
            they_have = f"they have {', '.join(known)}{hint_at(name, known)}"
            raise ArgumentError(f"no setting has a hyperparameter {name}; {they_have}")
        _refuse_what_compares_nothing(runs)
        first += runs
    planned = [replace(run, seed=seed) for seed in range(seeds) for run in first if run.algorithm or seed == 0]
    # What is named twice, or made the same by options, is compared once.
    return list({run.name: run for run in planned}.values())


def _refuse_what_compares_nothing(runs: Sequence[Run]) -> None:
    """Refuse runs in an environment of which two are the same, or train for different numbers of steps."""
    for one, other in combinations(runs, 2):
        if one.timesteps != other.timesteps:
            raise ArgumentError(
                f"{one.label} would train for {one.timesteps:,} steps in {one.env}, and {other.label} for "
                f"{other.timesteps:,}: choose one number with --timesteps"
            )
        # Equality, unlike a digest, takes 3 and 3.0 for the same number.
        if replace(one, label=other.label) == other:
            raise ArgumentError(f"{other.label} and {one.label} are the same setting in {one.env}; name one of them")


def plan_runs(options: argparse.Namespace) -> list[Run]:
    """Plan the runs that the command line asks for."""
    if options.tensorboard and not find_spec("tensorboard"):
        raise SystemExit(f"--tensorboard needs the package tensorboard: {installation('examples')}")
    if options.address is not None and options.backend == "loky":
        raise ArgumentError(f"--address {options.address} is for --backend ray or dask; loky needs none")
    if options.jobs is not None and options.jobs < 1:
        raise ArgumentError(f"--jobs must be at least 1, not {options.jobs}")
    config = Config() if options.config is None else read_config(options.config)
    texts = options.algos or config.settings
    if options.algos is None and options.protocol not in (None, "sb3"):
        # SB3's PPO cannot follow the paper's protocols, and runs under its own.
        texts = [f"{BASELINE}:protocol=sb3" if text == BASELINE else text for text in texts]
    seeds = config.seeds if options.seeds is None else options.seeds
    conditions = [_change(each, options) for each in config.conditions]
    settings = [read_setting(text) for text in texts]
    return make_plan(settings, options.envs or config.envs, seeds, conditions)


def _change(conditions: Conditions, options: argparse.Namespace) -> Conditions:
    """Change conditions by the options that are given."""
    if options.hyperparams is not None:
        conditions = replace(conditions, file=options.hyperparams, entry=None)
    if options.protocol is not None:
        conditions = conditions.under(options.protocol)
    names = ("timesteps", "entry", "normalize", "anneal", "resume_every")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.param:
        given["parameters"] = conditions.parameters | assignments(",".join(options.param))
    return replace(conditions, **given)
