"""A KL penalty with a fixed coefficient."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.arguments.rules import NON_NEGATIVE, POSITIVE, Rule, current_value, documented_like, given_in
from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.objectives import KLPenalized
from sb3_ppo_variants.updates import NormalizeAdvantage, Updates
from sb3_ppo_variants.variants.clip import PPOClip


@documented_like(PPOClip)
class PPOFixedKL(PPOBase):
    """PPO with a fixed KL penalty, equation 8 of https://arxiv.org/abs/1707.06347 with a constant beta.

    It maximises E[r A - beta KL(old || new)], where the KL is exact and summed over action dimensions.

    :param clip_range: eps, > 0, a number or a schedule; if given, r A is clipped as in :class:`PPOClip`, in addition to
        the penalty
    :param kl_coef: beta, >= 0, a number or a schedule
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    :raises MissingKLError: if the policy's distribution has no registered KL
    """

    own_rules: ClassVar[Mapping[str, Rule]] = {
        "clip_range": POSITIVE.or_schedule().or_none(),
        "kl_coef": NON_NEGATIVE.or_schedule(),
    }
    clip_range: float | Schedule | None
    kl_coef: float | Schedule

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
        clip_range: float | Schedule | None = None,
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
        kl_coef: float | Schedule = 1.0,
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | dict[str, Any] | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given_in(locals()))

    @property
    def current_kl_coef(self) -> float:
        """Beta at the current training progress."""
        return current_value("kl_coef", self.kl_coef, self._current_progress_remaining)

    def _objective(self) -> KLPenalized:
        clip_range, progress = self.clip_range, self._current_progress_remaining
        return KLPenalized(
            kl_coef=self.current_kl_coef,
            clip_range=None if clip_range is None else current_value("clip_range", clip_range, progress),
        )
