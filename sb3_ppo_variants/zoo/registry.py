"""Registers this package's algorithms with rl_zoo3."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist
from rl_zoo3 import exp_manager
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER, convert_onpolicy_params
from rl_zoo3.utils import ALGOS, SimpleLinearSchedule, get_class_by_name
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.envs import SafeSubprocVecEnv
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.objectives import read_objective
from sb3_ppo_variants.policies.choice import kind_of_class
from sb3_ppo_variants.processes import init_processes
from sb3_ppo_variants.recipes import ALGORITHMS, check_skipped_frames, schedule
from sb3_ppo_variants.recipes.environments import Hyperparameters
from sb3_ppo_variants.zoo.launch import replaced
from sb3_ppo_variants.zoo.search import sampler

Upstream = exp_manager.ExperimentManager


class ExperimentManager(Upstream):
    """rl_zoo3's experiment manager, which uses this package's hyperparameters for this package's algorithms.

    ``--conf-file`` overrides these. ``--vec-env subproc`` uses :class:`~sb3_ppo_variants.envs.SafeSubprocVecEnv`, whose
    workers report why they fail.
    """

    def __init__(self, args: Any, algo: str, env_id: str, log_folder: str, *others: Any, **options: Any):
        # Of several processes that train together, only rank 0 writes to the log folder.
        self._unread = TemporaryDirectory() if init_processes() and dist.get_rank() > 0 else None
        super().__init__(args, algo, env_id, self._unread.name if self._unread else log_folder, *others, **options)

    def setup_experiment(self) -> tuple[BaseAlgorithm, Hyperparameters] | None:
        """Set up the experiment; see rl_zoo3."""
        if self.args.conf_file is None and self.algo in ALGORITHMS:
            self.config = f"sb3_ppo_variants.recipes.{self.algo}"
        if self.vec_env_class is SubprocVecEnv:
            self.vec_env_class = SafeSubprocVecEnv
        return super().setup_experiment()

    def read_hyperparameters(self) -> tuple[Hyperparameters, Hyperparameters]:
        """Read the hyperparameters; see rl_zoo3. Warn if an Atari game and its wrapper both skip frames.

        :raises ArgumentError: if the policy needs action masks
        """
        with self._copied():
            hyperparams, saved = super().read_hyperparameters()
        if self.algo in ALGORITHMS:
            _check_policy(hyperparams.get("policy"))
        env_id, env_kwargs = self.env_name.gym_id, self.env_kwargs or hyperparams.get("env_kwargs")
        try:
            check_skipped_frames(env_id, hyperparams.get("env_wrapper"), env_kwargs)
        except ArgumentError:
            # rl_zoo3 accepts this, so that earlier runs with it stay reproducible.
            warnings.warn(f"{env_id} skips frames, and AtariWrapper skips again: add --env-kwargs frameskip:1")
        return hyperparams, saved

    @contextmanager
    def _copied(self) -> Iterator[None]:
        """Let rl_zoo3, which changes the hyperparameters that it reads from a module, change a copy of them."""
        if Path(self.config).suffix in (".yml", ".yaml", ".py"):
            yield
            return
        module = import_module(self.config)
        with replaced(module, "hyperparams", deepcopy(module.hyperparams)):
            yield

    @staticmethod
    def _preprocess_schedules(hyperparams: Hyperparameters) -> Hyperparameters:
        hyperparams = Upstream._preprocess_schedules(hyperparams)
        for name, value in hyperparams.items():
            if isinstance(value, SimpleLinearSchedule):
                # A model with SB3's schedule can be loaded without rl_zoo3.
                hyperparams[name] = LinearSchedule(value.initial_value, 0.0, 1.0)
            elif name == "kl_coef":
                # rl_zoo3 only converts arguments of its own algorithms to schedules.
                hyperparams[name] = schedule(name, value)
            elif name == "objective" and isinstance(value, str):
                hyperparams[name] = read_objective(value)
        return hyperparams


def _check_policy(policy: object) -> None:
    """Check that rl_zoo3 can evaluate a policy, which is an alias, a class or its import path."""
    if isinstance(policy, str):
        policy = get_class_by_name(policy) if "." in policy else PPOBase.policy_aliases.get(policy)
    if isinstance(policy, type) and issubclass(policy, BasePolicy) and kind_of_class(policy).takes_masks:
        raise ArgumentError(
            f"rl_zoo3 evaluates policies without action masks, which a {policy.__name__} needs; train it without "
            "rl_zoo3, as in examples/masked.py and docs/masked.md"
        )


def register() -> None:
    """Add the algorithms, their hyperparameters, search spaces and tasks to rl_zoo3, for this process."""
    import_module("sb3_ppo_variants.tasks")  # Registers this package's tasks.
    for name, algorithm in ALGORITHMS.items():
        ALGOS[name] = algorithm
        HYPERPARAMS_SAMPLER[name] = sampler(name)
        HYPERPARAMS_CONVERTER[name] = convert_onpolicy_params
    # rl_zoo3's scripts import the class from this module.
    exp_manager.ExperimentManager = ExperimentManager  # type: ignore[misc]
