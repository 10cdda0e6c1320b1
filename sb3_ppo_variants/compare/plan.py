"""The runs of a comparison, all planned and checked before the first one starts."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

from sb3_ppo_variants import recipes
from sb3_ppo_variants.compare.conditions import Conditions, of_environment, resolve
from sb3_ppo_variants.compare.quiet import quieted
from sb3_ppo_variants.compare.records import FORMAT, digest, plain
from sb3_ppo_variants.compare.settings import RESERVED, Setting, accepted, load_class
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes.environments import Hyperparameters
from sb3_ppo_variants.recipes.recipe import Recipe
from sb3_ppo_variants.recipes.training import build
from sb3_ppo_variants.variants import PPOClip

# Normalised scores are 0 for this policy. Its run ends after the episodes that a score needs, or after this many steps.
RANDOM = "random policy"
RANDOM_TIMESTEPS = 1_000_000
# Bytes of the readable part of a run's name.
LONGEST = 200


@dataclass(frozen=True)
class Run:
    """One run, with everything that its result depends on.

    :param label: the setting in words, or ``RANDOM``
    :param algorithm: ``module:Class``, empty for the random policy
    :param hyperparameters: hyperparameters of the algorithm and the environment, in the RL Zoo's format
    :param conditions: the conditions that all settings of the comparison share
    """

    label: str
    algorithm: str
    env: str
    seed: int
    timesteps: int
    hyperparameters: Hyperparameters
    conditions: dict[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """The fields of the run, as JSON-serialisable values."""
        return {**asdict(self), "hyperparameters": plain("hyperparameters", self.hyperparameters)}

    @property
    def name(self) -> str:
        """A name for the run's files: a readable part, and the digest of the run's identity."""
        words = f"{self.label}-{self.env}-{self.seed}"
        readable = "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in words)
        # Names of files are limited to 255 bytes, and a letter may have up to four.
        short = readable[:100].encode()[:LONGEST].decode(errors="ignore")
        return f"{short}-{digest({'format': FORMAT, **self.identity})}"

    def recipe(self) -> Recipe:
        """Return the recipe of the run."""
        recipes.check_registered(self.env)
        settings = {**self.hyperparameters, "n_timesteps": self.timesteps}
        return recipes.parse(load_class(self.algorithm or "sb3_ppo_variants:PPOClip"), self.env, settings)


class Plan(NamedTuple):
    """The runs in the order in which they start, and notes about them for the user."""

    runs: list[Run]
    notes: list[str]


def make_plan(settings: list[Setting], envs: list[str], seeds: int, conditions: Conditions) -> Plan:
    """Plan all settings in all environments with all seeds, which are 0, 1, ...

    The seed is the outermost loop, so that a plan that is cut short has every setting in every environment.

    :raises ArgumentError: if something is unknown or not allowed, or two settings are the same
    """
    if seeds < 1:
        raise ArgumentError(f"--seeds must be at least 1, not {seeds}")
    _refuse_twice("--envs", envs)
    _refuse_twice("--algos", [setting.label for setting in settings])
    described = conditions.description()
    randoms, first, notes = [], [], []
    for env in envs:
        of_env = {**of_environment(env, conditions), "n_envs": 1}
        randoms.append(Run(RANDOM, "", env, 0, RANDOM_TIMESTEPS, of_env, described))
        found = [resolve(setting, env, conditions) for setting in settings]
        _refuse_unknown(set.intersection(*(set(resolved.dropped) for resolved in found)), settings)
        for setting, (hyperparameters, timesteps, dropped) in zip(settings, found, strict=True):
            first.append(Run(setting.label, setting.path, env, 0, timesteps, hyperparameters, described))
            if dropped:
                notes.append(f"{setting.label} in {env} does not use {', '.join(dropped)}")
    _refuse_same(first)
    return Plan([*randoms, *(replace(run, seed=seed) for seed in range(seeds) for run in first)], notes)


def together(plans: Iterable[Plan]) -> Plan:
    """Merge plans: the first seed runs in the first environment under all conditions, then in the next environment."""
    runs, notes = [], []
    for plan in plans:
        runs += plan.runs
        notes += plan.notes
    envs = list(dict.fromkeys(run.env for run in runs))
    # The runs of a single plan keep their order.
    several = len({digest(run.conditions) for run in runs}) > 1
    ordered = sorted(runs, key=lambda run: (run.seed, envs.index(run.env))) if several else runs
    return Plan(ordered, list(dict.fromkeys(notes)))


def _refuse_unknown(dropped: set[str], settings: list[Setting]) -> None:
    """Refuse a hyperparameter that no setting has, unless PPO has it."""
    arguments = {argument for setting in settings for argument in accepted(load_class(setting.path))} - RESERVED.keys()
    for name in sorted(dropped - accepted(PPOClip).keys()):
        known = ", ".join([*recipes.ENVIRONMENT_KEYS, *sorted(arguments)])
        raise ArgumentError(f"no setting has a hyperparameter {name}; they have {known}")


def _refuse_twice(option: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ArgumentError(f"{option} names {value} more than once")


def _refuse_same(runs: list[Run]) -> None:
    # Equality, unlike a digest, takes 3 and 3.0 for the same number.
    described = [(run.label, {**run.identity, "label": None}) for run in runs]
    for (one, first), (other, second) in combinations(described, 2):
        if first == second:
            raise ArgumentError(f"{other} and {one} are the same setting in {first['env']}; name one of them")


def check(runs: Iterable[Run]) -> None:
    """Create the model of every setting in every environment once.

    :raises ArgumentError: if that fails, naming the setting and the environment
    """
    # The same hyperparameters give the same model, even under other conditions.
    for run in {(run.label, run.env, digest(run.identity["hyperparameters"])): run for run in runs}.values():
        try:
            with quieted():
                env = build(run.recipe(), run.seed).get_env() if run.algorithm else run.recipe().make_env()
        except Exception as error:
            kind = "" if isinstance(error, ArgumentError) else f"{type(error).__name__}: "
            raise ArgumentError(f"{run.label} cannot run in {run.env}: {kind}{error}") from error
        if env is not None:
            env.close()
