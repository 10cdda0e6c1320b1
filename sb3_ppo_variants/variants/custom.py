"""PPO with your own objective."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.arguments.rules import Rule, documented_like, given_in, instance
from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.objectives import Objective
from sb3_ppo_variants.updates import NormalizeAdvantage, Updates
from sb3_ppo_variants.updates.run import LOGGED
from sb3_ppo_variants.variants.clip import PPOClip


@documented_like(PPOClip)
class PPOCustom(PPOBase):
    """PPO with your own objective.

    The objective is saved with the model, so its class must be importable where the model is loaded.

    :param objective: an instance of a subclass of :class:`~sb3_ppo_variants.Objective`. It trains on the fast path if
        it is an :class:`~sb3_ppo_variants.ArrayObjective`
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    :raises MissingKLError: if the policy's distribution has no registered KL and the objective needs one
    """

    own_rules: ClassVar[Mapping[str, Rule]] = {
        "objective": instance("an instance of a class derived from Objective", Objective)
    }
    objective: Any

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | VectorEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: NormalizeAdvantage = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        objective: Objective | None = None,
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | dict[str, Any] | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given_in(locals()))

    def _objective(self) -> Objective:
        # The last rollout may take more steps than requested, and SB3's remaining progress is then negative.
        progress_remaining = max(self._current_progress_remaining, 0.0)
        return self._returned("at", self.objective.at(progress_remaining))

    def _keep_objective(self, used: Objective, kl: float | None) -> None:
        self.objective = self._returned("after_update", self.objective.after_update(kl))

    def _returned(self, method: str, objective: object) -> Objective:
        if not isinstance(objective, Objective):
            name = type(self.objective).__name__
            raise ArgumentError(f"{name}.{method} returned {objective!r}; allowed: an objective, such as self")
        taken = sorted(LOGGED & objective.coefficients().keys())
        if taken:
            raise ArgumentError(
                f"{type(objective).__name__}.coefficients returned a coefficient named {taken[0]!r}, but another value "
                f"is logged as train/{taken[0]}: give it another name"
            )
        return objective
