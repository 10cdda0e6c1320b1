"""The RL Zoo with the algorithms and hyperparameters of this package.

Every script of rl_zoo3 is a module here, with the same options:
``python -m sb3_ppo_variants.zoo.train --algo ppo_clip``.
"""

import subprocess
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import which
from subprocess import call
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
import yaml
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize

from sb3_ppo_variants.arguments import FLAG
from sb3_ppo_variants.callbacks import set_reads
from sb3_ppo_variants.collector import Reads
from sb3_ppo_variants.envs import SafeSubprocVecEnv
from sb3_ppo_variants.errors import ArgumentError, installation
from sb3_ppo_variants.policies.kind import kind_of_class
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.processes import init_processes
from sb3_ppo_variants.recipes import (
    ALGORITHMS,
    Hyperparameters,
    check_skipped_frames,
    entries_of,
    make_exact_vec_env,
    read_value,
)

try:
    import rl_zoo3
    from optuna import Trial
    from rl_zoo3 import exp_manager, utils
    from rl_zoo3.callbacks import RawStatisticsCallback, SaveVecNormalizeCallback, TrialEvalCallback
    from rl_zoo3.hyperparams_opt import (
        HYPERPARAMS_CONVERTER,
        HYPERPARAMS_SAMPLER,
        convert_onpolicy_params,
        sample_ppo_params,
    )
    from rl_zoo3.utils import ALGOS, StoreDict, get_class_by_name
except ImportError as error:
    raise ImportError(f"rl_zoo3 is not installed: {installation('zoo')}") from error

# ``-optimize`` may create environments in several threads.
PATCHING = Lock()
# The search spaces of objectives' arguments. The paper's values lie in the middle of each range.
SEARCH_SPACES: dict[str, Callable[[Trial], Hyperparameters]] = {
    "ppo_adaptive_kl": lambda trial: {
        "desired_kl": trial.suggest_float("desired_kl", 0.001, 0.1, log=True),
        "kl_coef": trial.suggest_float("kl_coef", 0.1, 10.0, log=True),
    },
    "ppo_fixed_kl": lambda trial: {"kl_coef": trial.suggest_float("kl_coef", 0.1, 30.0, log=True)},
}


class ExperimentManager(exp_manager.ExperimentManager):
    """rl_zoo3's experiment manager, which uses this package's hyperparameters for this package's algorithms.

    ``--conf-file`` overrides these. ``--vec-env subproc`` uses :class:`~sb3_ppo_variants.envs.SafeSubprocVecEnv`, whose
    workers report why they fail. The hyperparameter ``fast_envs`` uses the fastest environments with the same results
    instead of ``--vec-env``, for any algorithm.
    """

    def __init__(self, args: Namespace, algo: str, env_id: str, log_folder: str, *others: Any, **options: Any):
        self._temporary = TemporaryDirectory()
        # Of several processes that train together, only rank 0 writes to the log folder.
        if init_processes() and dist.get_rank() > 0:
            log_folder = f"{self._temporary.name}/unread"
        if options.get("config") is None and algo in ALGORITHMS:
            config = Path(self._temporary.name, f"{algo}.yml")
            config.write_text(yaml.safe_dump(entries_of(algo)), encoding="utf-8")
            options["config"] = str(config)
        super().__init__(args, algo, env_id, log_folder, *others, **options)
        if self.vec_env_class is SubprocVecEnv:
            self.vec_env_class = SafeSubprocVecEnv

    def read_hyperparameters(self) -> tuple[Hyperparameters, Hyperparameters]:
        """Read the hyperparameters; see rl_zoo3. Warn if an Atari game and its wrapper both skip frames.

        :raises ArgumentError: if ``fast_envs`` is neither True nor False, or the policy needs action masks
        """
        hyperparams, saved = super().read_hyperparameters()
        self._fast_envs = hyperparams.pop("fast_envs", False)
        FLAG.check("fast_envs", self._fast_envs)
        if self.algo in ALGORITHMS:
            _check_policy(hyperparams.get("policy"))
        env_kwargs = self.env_kwargs or hyperparams.get("env_kwargs")
        try:
            check_skipped_frames(self.env_name.gym_id, hyperparams.get("env_wrapper"), env_kwargs)
        except ArgumentError as error:
            warnings.warn(str(error))  # rl_zoo3 accepts it, and earlier runs stay reproducible.
        return hyperparams, saved

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """Create the environments; see rl_zoo3."""
        if not self._fast_envs:
            return super().create_envs(n_envs, eval_env, no_log)
        with PATCHING, patch.object(exp_manager, "make_vec_env", self._make_fast):
            return super().create_envs(n_envs, eval_env, no_log)

    def _make_fast(self, make_env: object, vec_env_cls: object, vec_env_kwargs: object, **arguments: Any) -> VecEnv:
        return make_exact_vec_env(self.env_name.gym_id, verbose=min(self.verbose, 1), **arguments)

    def _maybe_normalize(self, env: VecEnv, eval_env: bool) -> VecEnv:
        # rl_zoo3 does not look beside the model, where exact checkpoints and recipes.train have the statistics.
        beside = Path(self.trained_agent).parent / "vecnormalize.pkl"
        if not (self.continue_training and beside.exists()):
            return super()._maybe_normalize(env, eval_env)
        normalized = VecNormalize.load(str(beside), env)
        normalized.training &= not eval_env
        normalized.norm_reward &= not eval_env
        return normalized

    @staticmethod
    def _preprocess_schedules(hyperparams: Hyperparameters) -> Hyperparameters:
        # rl_zoo3 reads the schedules of its own algorithms alone, and a model with one cannot be loaded without it.
        return {name: read_value(name, value) for name, value in hyperparams.items()}


def _check_policy(policy: object) -> None:
    """Check that rl_zoo3 can evaluate a policy, which is an alias, a class or its import path."""
    if isinstance(policy, str):
        policy = get_class_by_name(policy) if "." in policy else PPOBase.policy_aliases.get(policy)
    if isinstance(policy, type) and issubclass(policy, BasePolicy) and kind_of_class(policy).takes_masks:
        raise ArgumentError(
            f"rl_zoo3 evaluates policies without action masks, which a {policy.__name__} needs; train it without "
            "rl_zoo3, as in examples/masked.py and docs/masked.md"
        )


class StoreHyperparameters(StoreDict):
    """rl_zoo3's action for options such as ``-params``, where ``SPO(0.2)``, which is no Python, is text."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Store the values."""
        found = dict(text.split(":", 1) for text in values)
        for name, value in found.items():
            with suppress(NameError, SyntaxError):
                found[name] = eval(value, dict(vars(utils)))
        setattr(namespace, self.dest, found)


def sample(algorithm: str, trial: Trial, *others: Any) -> Hyperparameters:
    """Sample an algorithm's hyperparameters for ``-optimize``: those of rl_zoo3's PPO, and its own."""
    if algorithm == "ppo_clip":
        return sample_ppo_params(trial, *others)

    def suggest(name: str, choices: Sequence[Any]) -> Any:
        return None if name == "clip_range" else Trial.suggest_categorical(trial, name, choices)

    with patch.object(trial, "suggest_categorical", suggest):
        suggested = sample_ppo_params(trial, *others)
    del suggested["clip_range"]
    own = SEARCH_SPACES[algorithm](trial) if algorithm in SEARCH_SPACES else {}
    return suggested | own


def call_ours(command: Sequence[str], *args: Any, **kwargs: Any) -> int:
    """Run a command as ``subprocess.call`` does, but instead of scripts of rl_zoo3 those of this package.

    rl_zoo3 runs ``python``, which may be a different interpreter, and ``enjoy.py`` in the working directory, which only
    exists in a clone of its repository.
    """
    match command:
        case ["python", "enjoy.py", *options]:
            command = [sys.executable, "-m", "sb3_ppo_variants.zoo.enjoy", *options]
        case ["python", "-m", "rl_zoo3.record_video", *options]:
            # record_training would record every video before it fails to join them.
            if which("ffmpeg") is None:
                sys.exit("videos are joined with the program ffmpeg, which is not on the PATH: install ffmpeg first")
            command = [sys.executable, "-m", "sb3_ppo_variants.zoo.record_video", *options]
    return call(command, *args, **kwargs)


# Its scripts know the algorithms from these tables, import the classes from these modules, and start each other so.
for name, algorithm in ALGORITHMS.items():
    ALGOS[name] = algorithm
    HYPERPARAMS_SAMPLER[name] = partial(sample, name)
    HYPERPARAMS_CONVERTER[name] = convert_onpolicy_params
set_reads(Reads.NOTHING, SaveVecNormalizeCallback, TrialEvalCallback)
set_reads(Reads.ENVS, RawStatisticsCallback)
exp_manager.ExperimentManager = ExperimentManager  # type: ignore[misc]
utils.StoreDict = StoreHyperparameters  # type: ignore[misc]
subprocess.call = call_ours  # type: ignore[assignment]
# Python searches the folders of a package's __path__ in order for its modules, so a script that is not in this folder,
# such as train, is rl_zoo3's own.
for folder in rl_zoo3.__path__:
    __path__ += [folder, f"{folder}/plots"]
