"""All runs of a comparison, known and checked before the first begins."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sb3_ppo_variants import recipes
from sb3_ppo_variants.benchmark.compare.conditions import Conditions, of_environment, resolve
from sb3_ppo_variants.benchmark.compare.records import FORMAT, Description, Identity
from sb3_ppo_variants.benchmark.compare.settings import RESERVED, Setting, accepted, load_class
from sb3_ppo_variants.benchmark.compare.values import digest, plain_dict
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes.environments import Hyperparameters
from sb3_ppo_variants.recipes.recipe import Recipe
from sb3_ppo_variants.recipes.training import build
from sb3_ppo_variants.variants import PPOClip

# Scores are scaled so that this policy has 0. Its run ends after as many episodes as count for a score, or these steps.
RANDOM = "random policy"
RANDOM_TIMESTEPS = 1_000_000


@dataclass(frozen=True)
class Run:
    """One training: all that it depends on.

    :param label: the setting in words, or ``RANDOM``
    :param algorithm: ``module:Class``, empty for the random policy
    :param env: id of the environment
    :param seed: seed of model and environment
    :param timesteps: environment steps
    :param hyperparameters: of algorithm and environment, in the RL Zoo's format
    :param conditions: what the settings of the comparison have in common
    """

    label: str
    algorithm: str
    env: str
    seed: int
    timesteps: int
    hyperparameters: Hyperparameters
    conditions: Description

    @property
    def identity(self) -> Identity:
        """What the run is, as JSON can hold it."""
        return {
            "label": self.label,
            "algorithm": self.algorithm,
            "env": self.env,
            "seed": self.seed,
            "timesteps": self.timesteps,
            "hyperparameters": plain_dict("hyperparameters", self.hyperparameters),
            "conditions": self.conditions,
        }

    @property
    def name(self) -> str:
        """A name for the run's files: in words, and the digest of its identity."""
        words = f"{self.label}-{self.env}-{self.seed}"
        readable = "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in words)
        return f"{readable[:100]}-{digest({'format': FORMAT, **self.identity})}"

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        recipes.check_registered(self.env)
        settings = {**self.hyperparameters, "n_timesteps": self.timesteps}
        return recipes.parse(load_class(self.algorithm or "sb3_ppo_variants:PPOClip"), self.env, settings)


@dataclass(frozen=True)
class Plan:
    """The runs in the order in which they begin, and what to know of them.

    :param runs: the runs
    :param notes: a line each
    """

    runs: list[Run]
    notes: list[str] = field(default_factory=list)


def make_plan(settings: list[Setting], envs: list[str], seeds: int, conditions: Conditions) -> Plan:
    """All settings in all environments with all seeds.

    Seeds go up slowest, so that a plan that is cut short has every setting in every environment.

    :param settings: what to compare
    :param envs: ids of environments
    :param seeds: number of seeds, which are 0, 1, ...
    :param conditions: what the settings have in common
    :raises ArgumentError: (a ``ValueError``) for what is not known, and for two settings that are the same
    """
    if seeds < 1:
        raise ArgumentError(f"--seeds must be at least 1, not {seeds}")
    _refuse_twice("--envs", envs)
    _refuse_twice("--algos", [setting.label for setting in settings])
    described = conditions.description()
    runs, notes = [random_run(env, conditions, described) for env in envs], []
    trainings: dict[int, list[Run]] = {seed: [] for seed in range(seeds)}
    for env in envs:
        found = [resolve(setting, env, conditions) for setting in settings]
        _refuse_unknown(set.intersection(*(set(resolved.dropped) for resolved in found)), settings)
        for setting, resolved in zip(settings, found, strict=True):
            given = (resolved.timesteps, resolved.hyperparameters, described)
            for seed, of_seed in trainings.items():
                of_seed.append(Run(setting.label, setting.path, env, seed, *given))
            if resolved.dropped:
                notes.append(f"{setting.label} in {env} goes without {', '.join(resolved.dropped)}")
    _refuse_same(trainings[0])
    return Plan(runs + [run for of_seed in trainings.values() for run in of_seed], notes)


def random_run(env: str, conditions: Conditions, described: Description) -> Run:
    """The run that measures the random policy in an environment."""
    of_env = {**of_environment(env, conditions), "n_envs": 1}
    return Run(RANDOM, "", env, 0, RANDOM_TIMESTEPS, of_env, described)


def _refuse_unknown(dropped: set[str], settings: list[Setting]) -> None:
    """:raises ArgumentError: for a hyperparameter that no setting has, unless it is one of PPO"""
    arguments = {argument for setting in settings for argument in accepted(load_class(setting.path))} - RESERVED.keys()
    for name in sorted(dropped - accepted(PPOClip).keys()):
        known = ", ".join([*recipes.ENVIRONMENT_KEYS, *sorted(arguments)])
        raise ArgumentError(f"no setting has a hyperparameter {name}; they have {known}")


def _refuse_twice(option: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ArgumentError(f"{option} names {value} more than once")


def _refuse_same(runs: list[Run]) -> None:
    seen: dict[str, str] = {}
    for run in runs:
        same = digest({**run.identity, "label": None})
        if same in seen:
            raise ArgumentError(f"{run.label} and {seen[same]} are the same setting in {run.env}; name one of them")
        seen[same] = run.label


def check(runs: Iterable[Run]) -> None:
    """Make the model of every setting in every environment once, without a step.

    :raises ArgumentError: (a ``ValueError``) naming the setting and the environment that can not be made
    """
    for run in {(run.label, run.env): run for run in runs}.values():
        try:
            env = build(run.recipe(), run.seed).get_env() if run.algorithm else run.recipe().make_env()
        except Exception as error:
            kind = "" if isinstance(error, ArgumentError) else f"{type(error).__name__}: "
            raise ArgumentError(f"{run.label} cannot run in {run.env}: {kind}{error}") from error
        if env is not None:
            env.close()
