"""What is compared: named comparisons, and the runs of a comparison, all planned before the first one starts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import NamedTuple

from sb3_ppo_variants import recipes
from sb3_ppo_variants.arguments.checks import list_arguments
from sb3_ppo_variants.compare import robustness
from sb3_ppo_variants.compare.options import BASELINE, DEFAULT_ALGORITHMS
from sb3_ppo_variants.compare.paper import BEST, FIGURE_3, NONE, PAPERS_ENVS, TABLE_1
from sb3_ppo_variants.compare.records import FORMAT, RANDOM, Record, digest, to_plain
from sb3_ppo_variants.compare.settings import (
    COMPARED_ENVIRONMENT_KEYS,
    RESERVED,
    Conditions,
    Setting,
    load_class,
    read_setting,
    resolve,
    share,
)
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.objectives import list_objectives, surrogates
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.recipes.hyperparameters import Hyperparameters
from sb3_ppo_variants.saving.plain import Values
from sb3_ppo_variants.variants import PPOClip

# The run of the random policy ends after the episodes that a score needs, or after this many steps.
RANDOM_TIMESTEPS = 1_000_000
# Bytes of the readable part of a run's name.
LONGEST_READABLE = 200


@dataclass(frozen=True)
class Preset:
    """The defaults of the command line for a named comparison."""

    # By the name of the cut.
    settings: Mapping[str, list[str]]
    envs: list[str]
    conditions: Conditions
    seeds: int = 3
    # The reason for the conditions.
    why: str = ""
    # If there are any, the settings are compared under each of these conditions instead.
    studied: Sequence[Conditions] = ()

    def cut(self, name: str, protocol: str | None) -> list[str]:
        """Return the settings of a cut under a protocol.

        SB3's PPO cannot follow the paper's protocols. It then runs under its own, or is left out of the headline.
        """
        if protocol in (None, "sb3"):
            return self.settings[name]
        of_paper = [text for text in self.settings[name] if text != BASELINE]
        alone = name == "headline" or len(of_paper) == len(self.settings[name])
        return of_paper if alone else [*of_paper, f"{BASELINE}:protocol=sb3"]

    def labels(self, protocol: str | None) -> set[str]:
        """List the labels of all settings under a protocol."""
        return {read_setting(text).label for text in self.cut("all", protocol)}

    def planned(self, records: Iterable[Record], protocol: str | None) -> list[Record]:
        """Select the records of the runs that the preset has under a protocol, without those of other options."""
        labels = self.labels(protocol)
        return [r for r in records if r["label"] in labels and r["env"] in self.envs and r["seed"] < self.seeds]


# The objectives of the paper have algorithms of their own. ``PPOCustom`` trains the others with their defaults.
OTHERS = [name for name, found in list_objectives().items() if found.__module__ != surrogates.__name__]
OBJECTIVE_SETTINGS = [
    *(name for name in DEFAULT_ALGORITHMS if name != BASELINE),
    *(f"ppo_custom:objective={name}" for name in OTHERS),
]
HEADLINE = [NONE, BEST, "ppo_adaptive_kl:desired_kl=0.01", "ppo_fixed_kl:kl_coef=1"]
STUDY_CONDITIONS = Conditions("table1-study", timesteps=500_000, entry="mujoco")


def _switched(what: str, anneal: bool | None = None, **changes: object) -> Conditions:
    return replace(STUDY_CONDITIONS, protocol="released-code", switched=what, anneal=anneal, parameters=changes)


def _robustness(preset: str) -> Conditions:
    return Conditions(preset, timesteps=500_000, entry="mujoco", normalize=True, anneal=True)


# The three protocols, then the released code with one ingredient changed at a time: to what users of SB3 have, and last
# with advantages that are not normalised at all.
STUDIED = [
    replace(STUDY_CONDITIONS, protocol="released-code"),
    replace(STUDY_CONDITIONS, protocol="text"),
    replace(STUDY_CONDITIONS, protocol="sb3"),
    _switched("actions clipped", env_wrapper=None),
    _switched("gradients clipped at 0.5", max_grad_norm=0.5),
    _switched("rewards normalised too", normalize={"norm_reward": True, "clip_obs": 5.0}),
    _switched("observations not normalised", normalize=False),
    _switched("nothing annealed", anneal=False),
    _switched("advantages normalised in each minibatch", normalize_advantage=True),
    _switched("advantages not normalised", normalize_advantage=False),
]
# The comparison without --preset.
DEFAULT = Preset({"all": DEFAULT_ALGORITHMS}, ["CartPole-v1"], Conditions())
PRESETS = {
    "paper-table1": Preset(
        settings={"all": [*(row.setting for row in TABLE_1), BASELINE], "headline": [*HEADLINE, BASELINE]},
        envs=PAPERS_ENVS,
        conditions=Conditions("paper-table1", timesteps=1_000_000, entry="mujoco", normalize=True, anneal=True),
        why=(
            "the paper's text says neither that observations are normalised nor that the step size is annealed; the "
            "code released with it does both, and so does this preset. That code anneals ε too, which here is "
            "constant. Rewards are scaled as well, because SB3 clips the gradients of policy and value together, and "
            "the error of unscaled values would leave the policy little; the objectives do not see that scale, as "
            "advantages are normalised. `--no-normalize` and `--no-anneal` follow the text"
        ),
    ),
    "paper-figure3": Preset(
        settings={"all": [curve.setting for curve in FIGURE_3]},
        envs=PAPERS_ENVS,
        conditions=Conditions("paper-figure3", timesteps=1_000_000, entry="mujoco", normalize=True),
        why=(
            "PPO is as users of SB3 run it. A2C and TRPO have the RL Zoo's hyperparameters for MuJoCo. The vanilla "
            "policy gradient takes one step on each rollout, and its step size follows the KL by a rule that the "
            "paper calls similar to that of its β; the paper gives no target, which here is that of Table 1's best "
            "adaptive KL. Of the paper's methods, CEM and A2C with a trust region are missing, because no maintained "
            "library has them for these policies"
        ),
    ),
    "table1-study": Preset(
        settings={"all": HEADLINE},
        envs=["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5"],
        conditions=STUDY_CONDITIONS,
        seeds=2,
        studied=STUDIED,
    ),
    "objectives": Preset(
        settings={"all": OBJECTIVE_SETTINGS},
        envs=["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"],
        conditions=Conditions("objectives", timesteps=500_000, entry="mujoco", normalize=True, anneal=True),
        why=(
            "all environments have the paper's hyperparameters for MuJoCo, because those that were tuned for an "
            "environment were tuned for the clipped objective. Each objective has its own defaults"
        ),
    ),
    "robustness": Preset({"all": robustness.ONE_AT_A_TIME}, robustness.ENVS, _robustness("robustness"), seeds=5),
    "robustness-random": Preset(
        {"all": robustness.AT_RANDOM}, robustness.ENVS, _robustness("robustness-random"), seeds=1
    ),
    "atari-demo": Preset(
        settings={"all": DEFAULT_ALGORITHMS, "headline": ["ppo_clip", BASELINE]},
        envs=["BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"],
        conditions=Conditions("atari-demo", timesteps=10_000_000, entry="atari", parameters={"device": "auto"}),
    ),
}


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


def make_plan(settings: list[Setting], envs: list[str], seeds: int, conditions: Conditions) -> Plan:
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
