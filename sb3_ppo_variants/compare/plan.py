"""The runs of a comparison, all planned before the first one starts."""

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import NamedTuple

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants import recipes
from sb3_ppo_variants.arguments import list_arguments
from sb3_ppo_variants.compare.records import FORMAT, RANDOM, digest, to_plain
from sb3_ppo_variants.compare.settings import (
    COMPARED_ENVIRONMENT_KEYS,
    RESERVED,
    Conditions,
    Setting,
    load_class,
    policy_for,
)
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.recipes.hyperparameters import Hyperparameters
from sb3_ppo_variants.saving.plain import Values
from sb3_ppo_variants.variants import PPOClip

# The run of the random policy ends after the episodes that a score needs, or after this many steps.
RANDOM_TIMESTEPS = 1_000_000
# Bytes of the readable part of a run's name.
LONGEST_READABLE = 200
# The arguments of this package's classes that every record contains. Those that the classes gained later are recorded
# if they are not at their defaults, so that earlier runs keep their names.
RECORDED = frozenset({
    "policy", "learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range",
    "clip_range_vf", "normalize_advantage", "ent_coef", "vf_coef", "max_grad_norm", "use_sde", "sde_sample_freq",
    "rollout_buffer_class", "rollout_buffer_kwargs", "target_kl", "policy_kwargs", "device", "fast", "updates",
    "desired_kl", "kl_coef", "objective",
})  # fmt: skip


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
        words = f"{self.label}-{self.env}-{self.seed}"
        readable = "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in words)
        # Names of files are limited to 255 bytes, and a letter may have up to four.
        short = readable[:100].encode()[:LONGEST_READABLE].decode(errors="ignore")
        return f"{short}-{digest({'format': FORMAT, **self.identity})}"

    def recipe(self, fast_envs: bool = False) -> recipes.Recipe:
        """Make the recipe of the run.

        :param fast_envs: whether it creates the fastest environments, which give the same results
        """
        recipes.check_registered(self.env)
        settings = {**self.hyperparameters, "n_timesteps": self.timesteps, "fast_envs": fast_envs}
        return recipes.parse(load_class(self.algorithm or "sb3_ppo_variants:PPOClip"), self.env, settings)


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
        hyperparameters["learning_rate"] = _anneal(hyperparameters.get("learning_rate"), conditions.anneal)
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


def _anneal(learning_rate: object, anneal: bool) -> object:
    """Return the step size, annealed linearly to 0 or constant."""
    text = str(learning_rate)
    is_annealed = text.startswith("lin_")
    try:
        constant = float(text.removeprefix("lin_"))
    except ValueError:
        allowed = f"a learning_rate like 3e-4 or lin_3e-4, not {learning_rate!r}"
        raise ArgumentError(f"--anneal and --no-anneal need {allowed}") from None
    if anneal:
        return text if is_annealed else f"lin_{text}"
    return constant if is_annealed else learning_rate


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
    envs = [recipes.full_id(env) for env in envs]
    for option, values in (("--envs", envs), ("--algos", [setting.label for setting in settings])):
        for value in values:
            if values.count(value) > 1:
                raise ArgumentError(f"{option} names {value} more than once")
    if conditions.resume_every is not None:
        _check_resumable(settings, conditions.resume_every)
    described = conditions.description()
    randoms, first, notes = [], [], []
    for env in envs:
        shared, _ = share(Setting("ppo_clip"), env, conditions)
        of_env = {name: value for name, value in shared.items() if name in COMPARED_ENVIRONMENT_KEYS}
        randoms.append(Run(RANDOM, "", env, 0, RANDOM_TIMESTEPS, {**of_env, "n_envs": 1}, described))
        found = [(setting, resolve(setting, env, conditions)) for setting in settings]
        _refuse_unknown(set.intersection(*(set(each.dropped) for _, each in found)), settings)
        runs = [Run(setting.label, setting.path, env, 0, n, given, described) for setting, (given, n, _) in found]
        _refuse_what_compares_nothing(runs)
        first += runs
        notes += [f"{s.label} in {env} does not use {', '.join(each.dropped)}" for s, each in found if each.dropped]
    return Plan([*randoms, *(replace(run, seed=seed) for seed in range(seeds) for run in first)], notes)


def _refuse_what_compares_nothing(runs: Sequence[Run]) -> None:
    """Refuse runs in an environment of which two are the same, or train for different numbers of steps."""
    budgets = {run.timesteps: run for run in runs}
    if len(budgets) > 1:
        one, other, *_ = budgets.values()
        raise ArgumentError(
            f"{one.label} would train for {one.timesteps:,} steps in {one.env}, and {other.label} for "
            f"{other.timesteps:,}: choose one number with --timesteps"
        )
    # Equality, unlike a digest, takes 3 and 3.0 for the same number.
    unlabelled = [(run.label, {**run.identity, "label": None}) for run in runs]
    for (one_label, identity), (label, same) in combinations(unlabelled, 2):
        if identity == same:
            raise ArgumentError(f"{label} and {one_label} are the same setting in {runs[0].env}; name one of them")


def _check_resumable(settings: Sequence[Setting], every: int) -> None:
    if every < 1:
        raise ArgumentError(f"--resume-every must be at least 1, not {every}")
    for setting in settings:
        if not issubclass(load_class(setting.path), PPOBase):
            raise ArgumentError(
                f"--resume-every {every} needs algorithms of this package, which can continue a run; {setting.label} "
                "cannot: leave it out of --algos"
            )


def _refuse_unknown(dropped: set[str], settings: Sequence[Setting]) -> None:
    """Refuse a hyperparameter that no setting has, unless PPO has it."""
    for name in sorted(dropped - list_arguments(PPOClip).keys()):
        arguments = {argument for setting in settings for argument in list_arguments(load_class(setting.path))}
        known = ", ".join([*COMPARED_ENVIRONMENT_KEYS, *sorted(arguments - RESERVED.keys())])
        raise ArgumentError(f"no setting has a hyperparameter {name}; they have {known}")


def merge_plans(plans: Iterable[Plan]) -> Plan:
    """Merge plans: the first seed runs in the first environment under all conditions, then in the next environment."""
    plans = list(plans)
    # Options may have made two conditions the same.
    runs = [*{run.name: run for plan in plans for run in plan.runs}.values()]
    if len(plans) > 1:
        envs = list(dict.fromkeys(run.env for run in runs))
        runs.sort(key=lambda run: (run.seed, envs.index(run.env)))
    return Plan(runs, list(dict.fromkeys(note for plan in plans for note in plan.notes)))
