"""The runs of a comparison, all planned before the first one starts."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import NamedTuple

from sb3_ppo_variants import recipes
from sb3_ppo_variants.arguments import list_arguments
from sb3_ppo_variants.compare.records import FORMAT, RANDOM, digest, to_plain
from sb3_ppo_variants.compare.settings import (
    COMPARED_ENVIRONMENT_KEYS,
    RESERVED,
    Conditions,
    Setting,
    load_class,
    resolve,
    share,
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
    _check_resumable(settings, conditions.resume_every)
    envs = [recipes.full_id(env) for env in envs]
    for option, values in (("--envs", envs), ("--algos", [setting.label for setting in settings])):
        for value in values:
            if values.count(value) > 1:
                raise ArgumentError(f"{option} names {value} more than once")
    described = conditions.description()
    randoms, first, notes = [], [], []
    for env in envs:
        shared, _ = share(Setting("ppo_clip"), env, conditions)
        of_env = {name: value for name, value in shared.items() if name in COMPARED_ENVIRONMENT_KEYS}
        randoms.append(Run(RANDOM, "", env, 0, RANDOM_TIMESTEPS, {**of_env, "n_envs": 1}, described))
        found = [resolve(setting, env, conditions) for setting in settings]
        _refuse_other_budgets(
            env, {each.timesteps: setting.label for setting, each in zip(settings, found, strict=True)}
        )
        _refuse_unknown(set.intersection(*(set(resolved.dropped) for resolved in found)), settings)
        for setting, (hyperparameters, timesteps, dropped) in zip(settings, found, strict=True):
            first.append(Run(setting.label, setting.path, env, 0, timesteps, hyperparameters, described))
            notes += _note(setting, env, dropped, conditions)
    # Equality, unlike a digest, takes 3 and 3.0 for the same number.
    unlabelled = [(run, {**run.identity, "label": None}) for run in first]
    for (one, identity), (other, same) in combinations(unlabelled, 2):
        if identity == same:
            raise ArgumentError(f"{other.label} and {one.label} are the same setting in {one.env}; name one of them")
    return Plan([*randoms, *(replace(run, seed=seed) for seed in range(seeds) for run in first)], notes)


def _note(setting: Setting, env: str, dropped: list[str], conditions: Conditions) -> list[str]:
    """Note what does not apply to a setting."""
    notes = [f"{setting.label} in {env} does not use {', '.join(dropped)}"] if dropped else []
    rate = setting.arguments.get("learning_rate")
    if conditions.anneal and setting.protocol is None and isinstance(rate, float | int):
        notes.append(f"{setting.label} is not annealed, because its step size is its own: write lin_{rate!r}")
    return notes


def _check_resumable(settings: list[Setting], every: int | None) -> None:
    if every is None:
        return
    if every < 1:
        raise ArgumentError(f"--resume-every must be at least 1, not {every}")
    for setting in settings:
        if not issubclass(load_class(setting.path), PPOBase):
            raise ArgumentError(
                f"--resume-every {every} needs algorithms of this package, which can continue a run; {setting.label} "
                "cannot: leave it out of --algos"
            )


def _refuse_other_budgets(env: str, by_steps: dict[int, str]) -> None:
    """Refuse settings that would train for different numbers of steps, as those of two protocols may."""
    if len(by_steps) > 1:
        (one, label), (other, another), *_ = by_steps.items()
        raise ArgumentError(
            f"{label} would train for {one:,} steps in {env}, and {another} for {other:,}: choose one number with "
            "--timesteps"
        )


def merge_plans(plans: Iterable[Plan]) -> Plan:
    """Merge plans: the first seed runs in the first environment under all conditions, then in the next environment."""
    plans = list(plans)
    runs = [run for plan in plans for run in plan.runs]
    if len(plans) > 1:
        envs = list(dict.fromkeys(run.env for run in runs))
        runs.sort(key=lambda run: (run.seed, envs.index(run.env)))
    return Plan(runs, list(dict.fromkeys(note for plan in plans for note in plan.notes)))


def _refuse_unknown(dropped: set[str], settings: list[Setting]) -> None:
    """Refuse a hyperparameter that no setting has, unless PPO has it."""
    for name in sorted(dropped - list_arguments(PPOClip).keys()):
        arguments = {argument for setting in settings for argument in list_arguments(load_class(setting.path))}
        if name == "callback":
            raise ArgumentError("a comparison has no callbacks: remove callback from the hyperparameters")
        known = ", ".join([*COMPARED_ENVIRONMENT_KEYS, *sorted(arguments - RESERVED.keys())])
        raise ArgumentError(f"no setting has a hyperparameter {name}; they have {known}")
