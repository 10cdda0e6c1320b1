"""Recipes: an algorithm, an environment and the hyperparameters that suit them; protocols of the paper's experiments.

Hyperparameters are in the RL Zoo's form. ``hyperparameters.yml`` has those of the package, with the source of each. A
protocol is the settings around the objectives, which decide how they compare.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
import yaml
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize, unwrap_vec_normalize

from sb3_ppo_variants.arguments import COUNT, FLAG, RULES, Values, check_names
from sb3_ppo_variants.callbacks import set_reads
from sb3_ppo_variants.collector import Reads
from sb3_ppo_variants.commandline import read_call
from sb3_ppo_variants.envs import check_frame_skip, make_fast_vec_env
from sb3_ppo_variants.envs.making import is_atari, spec_of
from sb3_ppo_variants.envs.masks import check_env
from sb3_ppo_variants.envs.outputs import Info
from sb3_ppo_variants.errors import ArgumentError, refuse
from sb3_ppo_variants.evaluation import WithMasks
from sb3_ppo_variants.generators import generators_kept
from sb3_ppo_variants.limits import ApproximateKL, ExactKL, KLAdaptive, RatioDeviation
from sb3_ppo_variants.losses import ClippedError, Huber, SquaredError
from sb3_ppo_variants.objectives import read_objective
from sb3_ppo_variants.policies.kind import kind_of_class
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.processes import current
from sb3_ppo_variants.separate import SeparateUpdates
from sb3_ppo_variants.variants import PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, PPOUnclipped

__all__ = [
    "ALGORITHMS",
    "PROTOCOLS",
    "Protocol",
    "Recipe",
    "entries_of",
    "evaluate",
    "load",
    "parse",
    "recipe",
    "select",
    "train",
]
Hyperparameters = Values
# A class or its import path, and what may stand for wrappers in the RL Zoo's format.
Wrapper = str | Callable[..., gym.Env]
Wrappers = Wrapper | dict[Wrapper, Hyperparameters] | Sequence[Wrapper | dict[Wrapper, Hyperparameters]] | None

ALGORITHMS: dict[str, type[PPOBase]] = {
    "ppo_clip": PPOClip,
    "ppo_adaptive_kl": PPOAdaptiveKL,
    "ppo_fixed_kl": PPOFixedKL,
    "ppo_unclipped": PPOUnclipped,
    "ppo_custom": PPOCustom,
}
# Algorithms that PPO is compared with.
BASELINES = ("stable_baselines3:A2C", "sb3_contrib:TRPO")
# What the RL Zoo's files write as Python, and the names that they use.
PYTHON = {"policy_kwargs", "normalize", "env_kwargs"}
PYTHON_NAMES = {"nn": th.nn, "th": th, "RMSpropTFLike": RMSpropTFLike}
# Entries of ``policy_kwargs`` that are classes, which an import path can name.
CLASS_ENTRIES = {"activation_fn", "features_extractor_class", "optimizer_class"}
# Hyperparameters, besides ``n_timesteps``, that are not arguments of the algorithm.
ENVIRONMENT_KEYS = ("n_envs", "normalize", "env_wrapper", "frame_stack", "env_kwargs", "fast_envs")
# The classes whose objects a text such as "ExactKL(0.02)" can stand for.
PARTS = (KLAdaptive, ApproximateKL, ExactKL, RatioDeviation, SquaredError, ClippedError, Huber, SeparateUpdates)
EVALUATION_SEED = 10_000
STATISTICS_FILE = "vecnormalize.pkl"
_FILE: Hyperparameters = yaml.safe_load(Path(__file__).with_name("hyperparameters.yml").read_text(encoding="utf-8"))


def entries_of(algorithm: str) -> dict[str, Hyperparameters]:
    """List the hyperparameters of every environment for an algorithm, as in a file of the RL Zoo: with Python as text.

    :param algorithm: such as ``"ppo_clip"``, or one of ``BASELINES``
    """
    found: dict[str, Hyperparameters] = _FILE[algorithm if algorithm in BASELINES else "ppo"]
    own = _FILE["instead_of_clip_range"].get(algorithm)
    if own is not None:
        found = {env_id: {n: v for n, v in entry.items() if n != "clip_range"} | own for env_id, entry in found.items()}
    return found


def select(entries: Mapping[str, Hyperparameters], env_id: str, entry: str | None = None) -> Hyperparameters:
    """Select the hyperparameters for an environment, with objects of their own.

    What they write as Python is evaluated. They can thus run any code, and must be the user's own.

    :param entries: hyperparameters in the format of the RL Zoo
    :param env_id: id of a registered environment
    :param entry: the key to use; ``None`` tries the environment's id, then the id without ``module:`` and with
        the latest version if it has none, then ``"atari"`` for an Atari game or ``"default"`` for any other environment
    :raises ArgumentError: if the environment is not registered, there is no such entry, or its Python raises an error
    """
    spec = registered(env_id)
    suited = [entry] if entry else [env_id, spec.id, "atari" if is_atari(spec) else "default"]
    found = next((entries[name] for name in suited if name in entries), None)
    if found is None:
        wanted = f"entry={entry!r}" if entry else " or ".join(map(repr, dict.fromkeys(suited)))
        raise ArgumentError(f"there are no hyperparameters for {wanted}, only for {', '.join(entries)}")
    selected = deepcopy(found)
    for name in PYTHON & selected.keys():
        if isinstance(text := selected[name], str):
            try:
                selected[name] = eval(text, dict(PYTHON_NAMES))
            except Exception as error:  # It may raise anything.
                raise ArgumentError(f"{name}={text!r} cannot be read: {type(error).__name__}: {error}") from error
    return selected


def registered(env_id: str) -> EnvSpec:
    """Find the specification of an environment, after importing the modules that may register it."""
    with suppress(ImportError):
        import_module("ale_py")  # Registers the Atari games.
    try:
        return spec_of(env_id)
    except Exception as error:  # Importing the module that the id names may raise anything.
        raise ArgumentError(f"env_id={env_id!r} is not a registered environment: {error}") from error


def read_value(name: str, value: object) -> object:
    """Read what a text stands for: a schedule (``"lin_x"``), an object (``"ExactKL(0.02)"``), or itself."""
    if not isinstance(value, str):
        return value
    if name == "objective":
        return read_objective(value)
    try:
        if value.startswith("lin_"):
            return LinearSchedule(float(value.removeprefix("lin_")), 0.0, 1.0)
        if part := next((cls for cls in PARTS if cls.__name__ == value.partition("(")[0].strip()), None):
            _, args, kwargs = read_call(value)
            return part(*args, **kwargs)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ArgumentError(f"{name}={value!r} cannot be read, as lin_0.001 or ExactKL(0.02) can: {error}") from error
    return value


def _load(name: str, path: object) -> Any:
    """Load what an import path such as ``"gymnasium.wrappers.RescaleAction"`` names, or any other object unchanged."""
    if not isinstance(path, str):
        return path
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(f"{name}={path!r} cannot be imported: {error}") from error


def _load_wrappers(env_wrapper: Wrappers) -> list[tuple[Callable[..., gym.Env], Hyperparameters]]:
    """Load each of the wrappers, which must be a class or function, with its arguments, the innermost first."""
    dicts = [each if isinstance(each, dict) else {each: {}} for each in _listed(env_wrapper)]
    loaded = [(_load("env_wrapper", wrapper), arguments) for each in dicts for wrapper, arguments in each.items()]
    if not all(callable(wrapper) and isinstance(arguments, dict) for wrapper, arguments in loaded):
        allowed = "None, a class, its import path, a dict from either to a dict of its arguments, or a list of these"
        refuse("env_wrapper", env_wrapper, allowed)
    return loaded


def _listed(env_wrapper: Wrappers) -> Sequence[Any]:
    return env_wrapper if isinstance(env_wrapper, list | tuple) else [] if env_wrapper is None else [env_wrapper]


def _wrap(wrappers: Wrappers, env: gym.Env) -> gym.Env:
    for wrapper, arguments in _load_wrappers(wrappers):
        env = wrapper(env, **arguments)
    return env


def check_skipped_frames(env_id: str, env_wrapper: Wrappers, env_kwargs: Hyperparameters | None = None) -> None:
    """Check that an Atari game and its wrappers, which are in the RL Zoo's format, do not both skip frames."""
    for wrapper, arguments in _load_wrappers(env_wrapper):
        if wrapper is AtariWrapper and is_atari(spec_of(env_id)):
            check_frame_skip(env_id, arguments.get("frame_skip", 4), env_kwargs)


def make_exact_vec_env(
    env_id: str, wrapper_class: Callable[[gym.Env], gym.Env] | None, verbose: int = 0, **arguments: Any
) -> VecEnv:
    """Create the fastest environments that give the same as SB3's ``make_vec_env``, which has the same arguments."""
    # Games get no other wrappers.
    if wrapper_class is None and is_atari(spec_of(env_id)):
        wrapper_class = partial(_wrap, None)
    return make_fast_vec_env(env_id, exact=True, wrapper_class=wrapper_class, verbose=verbose, **arguments)


# Protocols and recipes


@dataclass(frozen=True)
class Protocol:
    """Hyperparameters that override those of Table 3, the entry ``"mujoco"``.

    Its ``policy_kwargs`` and ``env_wrapper`` do not replace others, but are added to them.

    :param says: description of the protocol, as clauses
    :param changes: hyperparameters in the RL Zoo's format
    :param annealed: names of hyperparameters that are annealed linearly to 0
    """

    says: str = ""
    changes: Hyperparameters = field(default_factory=dict)
    annealed: Sequence[str] = ()

    def change(self, entry: Hyperparameters, changes: Hyperparameters) -> Hyperparameters:
        """Change an entry by the protocol, and both by further changes.

        The protocol's wrapper is around theirs, unless they set it to ``None``. Its ``policy_kwargs`` replace those of
        the entry one by one, and those of the changes replace the protocol's.
        """
        found, theirs = {**entry, **self.changes, **changes}, {**entry, **changes}
        if (own := self.changes.get("policy_kwargs")) and (others := theirs.get("policy_kwargs")) is not None:
            found["policy_kwargs"] = {**own, **others} if "policy_kwargs" in changes else {**others, **own}
        if (wrapper := self.changes.get("env_wrapper")) and (inside := theirs.get("env_wrapper")) is not None:
            found["env_wrapper"] = [*_listed(inside), wrapper]
        return found

    def anneal(self, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Anneal the protocol's ``annealed`` hyperparameters, except those that are not numbers."""
        numbers = {name: hyperparameters.get(name) for name in self.annealed}
        return hyperparameters | {n: f"lin_{value!r}" for n, value in numbers.items() if isinstance(value, float | int)}


PROTOCOLS = {name: Protocol(**of_protocol) for name, of_protocol in _FILE["protocols"].items()}


def find_protocol(name: str | None) -> Protocol:
    """Find a protocol, or one that changes nothing."""
    if name is not None and name not in PROTOCOLS:
        refuse("protocol", name, ", ".join(PROTOCOLS))
    return Protocol() if name is None else PROTOCOLS[name]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters for an environment, grouped by what they configure.

    :param arguments: arguments of the algorithm, except ``env``
    :param n_timesteps: environment steps to train for
    :param normalize: arguments of ``VecNormalize``; ``None`` for no normalisation
    :param frame_stack: number of frames stacked in an observation
    :param env_wrapper: wrapper of each environment, or a list of wrappers, innermost first. Each is a class, its import
        path, or a dict that maps either of these to the wrapper's arguments
    :param env_kwargs: arguments of the environment
    :param fast_envs: whether to create the environments with
        :func:`~sb3_ppo_variants.envs.make_fast_vec_env` and ``exact=True``, which gives the same results
    """

    env_id: str
    algorithm: type[BaseAlgorithm]
    arguments: Hyperparameters
    n_timesteps: int
    n_envs: int = 1
    normalize: Hyperparameters | None = None
    frame_stack: int = 1
    env_wrapper: Wrappers = None
    env_kwargs: Hyperparameters | None = None
    fast_envs: bool = False

    @property
    def is_deterministic(self) -> bool:
        """Whether evaluations take the most likely actions, as they do in the RL Zoo, except in Atari games."""
        return not is_atari(spec_of(self.env_id))

    def make_env(
        self, n_envs: int | None = None, seed: int | None = None, monitor_dir: str | None = None, training: bool = True
    ) -> VecEnv:
        """Create the environment of the recipe.

        :param n_envs: number of environments, >= 1; ``None`` uses the recipe's
        :param seed: seed of the first environment
        :param monitor_dir: folder for monitor files; ``None`` writes none
        :param training: whether ``VecNormalize`` updates its statistics and scales rewards. For evaluation, pass
            ``False``, and load the statistics with ``VecNormalize.load`` or ``sync_envs_normalization``
        :raises ArgumentError: if a value is not allowed, a wrapper cannot be imported, or both an Atari game and its
            wrapper would skip frames
        """
        n_envs = self.n_envs if n_envs is None else n_envs
        COUNT.check("n_envs", n_envs)
        RULES["seed"].check("seed", seed)
        COUNT.check("frame_stack", self.frame_stack)
        FLAG.check("fast_envs", self.fast_envs)
        check_skipped_frames(self.env_id, self.env_wrapper, self.env_kwargs)
        make: Callable[..., VecEnv] = make_exact_vec_env if self.fast_envs else make_vec_env
        wrapper = partial(_wrap, self.env_wrapper) if self.env_wrapper else None
        env = make(
            self.env_id, n_envs=n_envs, seed=seed, monitor_dir=monitor_dir, wrapper_class=wrapper,
            env_kwargs=self.env_kwargs,
        )  # fmt: skip
        if self.normalize is not None:
            env = VecNormalize(env, **{"gamma": self.arguments.get("gamma", 0.99), **self.normalize})
            env.training &= training
            env.norm_reward &= training
        return VecFrameStack(env, self.frame_stack) if self.frame_stack > 1 else env


def recipe(
    algorithm: str, env_id: str, entry: str | None = None, protocol: str | None = None, **changes: object
) -> Recipe:
    """Make the recipe for an algorithm and an environment.

    :param algorithm: a key of ``ALGORITHMS``
    :param env_id: id of a registered environment
    :param entry: the hyperparameters to use, such as ``"mujoco"`` (the paper's Table 3) or ``"spinning-up"``; ``None``
        uses ``"mujoco"`` with a protocol, and otherwise chooses as :func:`select` does
    :param protocol: protocol of the paper's experiments, a key of ``PROTOCOLS``; ``None`` uses the entry unchanged
    :param changes: hyperparameters to add or change, in the format of the RL Zoo. ``policy_kwargs`` and
        ``env_wrapper`` do not remove those of the protocol, unless they are ``None``
    :raises ArgumentError: if an argument is unknown, or a changed value is not allowed
    """
    if algorithm not in ALGORITHMS:
        refuse("algorithm", algorithm, ", ".join(ALGORITHMS))
    chosen = find_protocol(protocol)
    selected = select(entries_of(algorithm), env_id, entry or ("mujoco" if protocol else None))
    return parse(ALGORITHMS[algorithm], env_id, chosen.anneal(chosen.change(selected, changes)))


def parse(algorithm: type[BaseAlgorithm], env_id: str, hyperparameters: Hyperparameters) -> Recipe:
    """Create a recipe from hyperparameters in the format of the RL Zoo.

    :param hyperparameters: an entry of one of the RL Zoo's files, with strings of Python code already evaluated. An
        import path such as ``"torch.nn.ReLU"`` can name the policy and classes in ``policy_kwargs``. Objectives (see
        :func:`~sb3_ppo_variants.objectives.read_objective`), schedules (``"lin_0.001"``), step sizes that adapt
        (``"KLAdaptive()"``), ``stop``, ``value_loss`` and ``updates`` may be texts too
    :raises ArgumentError: if there is no such environment, the algorithm does not take a hyperparameter, a value is not
        allowed, or a class cannot be imported
    """
    registered(env_id)
    arguments: Hyperparameters = {name: read_value(name, value) for name, value in deepcopy(hyperparameters).items()}
    if isinstance(policy := arguments.get("policy"), str) and "." in policy:
        arguments["policy"] = _load("policy", policy)
    if isinstance(policy_kwargs := arguments.get("policy_kwargs"), dict):
        for name in CLASS_ENTRIES & policy_kwargs.keys():
            policy_kwargs[name] = _load(f"policy_kwargs[{name!r}]", policy_kwargs[name])
    n_timesteps = arguments.pop("n_timesteps", None)
    # The RL Zoo's files contain floats such as 1e6.
    if isinstance(n_timesteps, float) and n_timesteps.is_integer():
        n_timesteps = int(n_timesteps)
    COUNT.check("n_timesteps", n_timesteps)
    of_the_environment = {name: arguments.pop(name) for name in ENVIRONMENT_KEYS if name in arguments}
    given = ("env", "seed", "_init_setup_model")  # These are no hyperparameters.
    check_names("hyperparameters", arguments, algorithm, given, ("n_timesteps", *ENVIRONMENT_KEYS))
    normalize = of_the_environment.get("normalize")
    if not isinstance(normalize, bool | dict | None):
        refuse("normalize", normalize, "True, False, None, or a dict of arguments for VecNormalize")
    if not isinstance(normalize, dict):
        of_the_environment["normalize"] = {} if normalize else None
    return Recipe(env_id, algorithm, arguments, int(n_timesteps), **of_the_environment)


# Training


class Episodes(BaseCallback):
    """Records the return of every episode and the timestep at which it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[int] = []
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        self.note(self.num_timesteps, self.locals["infos"])
        return True

    def note(self, step: int, infos: list[Info]) -> None:
        """Record the episodes that ended in a step, as its infos report them."""
        for info in infos:
            if "episode" in info:
                self.ends.append(step)
                self.returns.append(float(info["episode"]["r"]))


set_reads(Reads.ENVS, Episodes)


def train(
    made: Recipe,
    folder: str | os.PathLike[str],
    seed: int | None = None,
    timesteps: int | None = None,
    callback: MaybeCallback = None,
    progress_bar: bool = False,
) -> BaseAlgorithm:
    """Train a model, and save it with the statistics of its ``VecNormalize``.

    All files replace those of an earlier run in the folder. An error or Ctrl-C during training saves what was trained,
    and is raised again. The environments are closed in the end. Of several processes that train together, only rank 0
    writes to the folder.

    :param folder: folder for ``model.zip``, ``vecnormalize.pkl`` and the monitor files, ``*.monitor.csv``
    :param timesteps: environment steps; ``None`` uses the recipe's
    :param callback: callback or callbacks to call during training
    :param progress_bar: whether to show progress (needs tqdm and rich)
    """
    # Ranks other than 0 write to a folder that nobody reads.
    is_first = current(made.arguments.get("data_parallel", "auto")).rank == 0
    with nullcontext(folder) if is_first else TemporaryDirectory() as name:
        into = Path(name)
        for left in into.glob("[0-9]*.monitor.csv"):
            left.unlink()
        model = build(made, seed, monitor_dir=str(into))
        try:
            model.learn(made.n_timesteps if timesteps is None else timesteps, callback, progress_bar=progress_bar)
        finally:
            if model.num_timesteps > 0:
                save(model, into)
            model.get_env().close()  # type: ignore[union-attr]
    return model


def build(made: Recipe, seed: int | None = None, monitor_dir: str | None = None) -> BaseAlgorithm:
    """Create the recipe's model and environment, both with the same seed.

    :raises ArgumentError: if the environment lacks the action masks that the policy needs
    """
    env = made.make_env(seed=seed, monitor_dir=monitor_dir)
    try:
        model = made.algorithm(env=env, seed=seed, **made.arguments)
        policy = type(model.policy)
        if kind_of_class(policy).takes_masks:
            check_env(env, policy.__name__, takes_masks=True)
        return model
    except BaseException:
        env.close()
        raise


def save(model: BaseAlgorithm, folder: str | os.PathLike[str]) -> None:
    """Save a model with the statistics of its ``VecNormalize``, for :func:`load`, in place of earlier files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model")
    statistics, file = model.get_vec_normalize_env(), folder / STATISTICS_FILE
    if statistics is not None:
        statistics.save(str(file))
    else:
        file.unlink(missing_ok=True)


def load(
    made: Recipe, folder: str | os.PathLike[str], seed: int | None = None, weights_only: bool = False
) -> tuple[BaseAlgorithm, VecEnv]:
    """Load the model that :func:`train` saved, with an environment to evaluate it in, normalised as in training.

    :param folder: the folder that was passed to :func:`train`
    :param weights_only: whether to unpickle nothing. Set this for files that you do not trust
    :raises ArgumentError: if the run was normalised and the recipe does not normalise, or the other way round; and with
        ``weights_only``, if the algorithm is not of this package, or the observations are normalised
    """
    if weights_only and not issubclass(made.algorithm, PPOBase):
        raise ArgumentError(f"weights_only=True needs an algorithm of this package, not {made.algorithm.__name__}")
    statistics, normalises = Path(folder, STATISTICS_FILE), made.normalize is not None
    if Path(folder, "model.zip").exists() and statistics.exists() != normalises:
        has, does = ("has no", "normalises") if normalises else ("has a", "does not normalise")
        raise ArgumentError(f"{folder} {has} {STATISTICS_FILE}, but this recipe {does}: pass the recipe of the run")
    env = made.make_env(n_envs=1, seed=seed, training=False)
    normalised = unwrap_vec_normalize(env)
    if normalised is not None and normalised.norm_obs:
        if weights_only:
            raise ArgumentError(f"weights_only=True unpickles nothing, but {statistics} is a pickle")
        normalised.obs_rms = VecNormalize.load(str(statistics), normalised.venv).obs_rms
    safely = {"weights_only": True} if weights_only else {}
    return made.algorithm.load(Path(folder, "model"), env=env, **safely), env  # type: ignore[arg-type]


def evaluate(made: Recipe, folder: str | os.PathLike[str], episodes: int, weights_only: bool = False) -> np.ndarray:
    """Evaluate the saved model in new episodes.

    The policy is deterministic, except in Atari games, as in the RL Zoo.

    :param folder: the folder that was passed to :func:`train`
    :param weights_only: see :func:`load`
    :return: the return of each episode, shape ``(episodes,)``
    :raises ArgumentError: if the number of episodes is not an integer >= 1, or :func:`load` raises it
    """
    COUNT.check("episodes", episodes)
    model, env = load(made, folder, EVALUATION_SEED, weights_only)
    predictor = WithMasks(model, env) if kind_of_class(type(model.policy)).takes_masks else model
    with generators_kept():
        th.manual_seed(EVALUATION_SEED)  # Otherwise, a stochastic policy would reach something else each time.
        returns, _ = evaluate_policy(predictor, env, episodes, made.is_deterministic, return_episode_rewards=True)
    env.close()
    return np.array(returns)
