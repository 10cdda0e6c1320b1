"""Makes this package's algorithms known to rl_zoo3."""

import argparse
import warnings
from typing import Any

from rl_zoo3 import exp_manager
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER, convert_onpolicy_params
from rl_zoo3.utils import ALGOS, SimpleLinearSchedule
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_ppo_variants.envs import SafeSubprocVecEnv
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes import ALGORITHMS, check_skipped_frames, schedule
from sb3_ppo_variants.zoo.search import sampler

Upstream = exp_manager.ExperimentManager


class ExperimentManager(Upstream):
    """rl_zoo3's, with this package's hyperparameters for its algorithms unless ``--conf-file`` names others.

    ``--vec-env subproc`` takes worker processes that say why they fail.
    """

    def __init__(self, args: argparse.Namespace, algo: str, *positional: Any, **named: Any):
        if named["config"] is None and algo in ALGORITHMS:
            named["config"] = f"sb3_ppo_variants.recipes.{algo}"
        super().__init__(args, algo, *positional, **named)
        if self.vec_env_class is SubprocVecEnv:
            self.vec_env_class = SafeSubprocVecEnv

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> Any:
        env_id, env_kwargs = self.env_name.gym_id, self.env_kwargs or hyperparams.get("env_kwargs")
        try:
            check_skipped_frames(env_id, hyperparams.get("env_wrapper"), env_kwargs)
        except ArgumentError:
            # rl_zoo3 goes on, so that runs of others with it can be repeated.
            warnings.warn(f"{env_id} skips frames, and AtariWrapper skips again: add --env-kwargs frameskip:1")
        return super()._preprocess_hyperparams(hyperparams)

    @staticmethod
    def _preprocess_schedules(hyperparams: dict[str, Any]) -> dict[str, Any]:
        hyperparams = Upstream._preprocess_schedules(hyperparams)
        for name, value in hyperparams.items():
            if isinstance(value, SimpleLinearSchedule):
                # A model with SB3's is loaded without rl_zoo3.
                hyperparams[name] = LinearSchedule(value.initial_value, 0.0, 1.0)
            elif name == "kl_coef":
                # rl_zoo3 makes schedules of arguments that its own algorithms have.
                hyperparams[name] = schedule(name, value)
        return hyperparams


def register() -> None:
    """Add the algorithms, their hyperparameters and their search spaces to rl_zoo3, for this process."""
    for name, algorithm in ALGORITHMS.items():
        ALGOS[name] = algorithm
        HYPERPARAMS_SAMPLER[name] = sampler(name)
        HYPERPARAMS_CONVERTER[name] = convert_onpolicy_params
    # Its scripts take the class from here when they are imported.
    vars(exp_manager)["ExperimentManager"] = ExperimentManager
