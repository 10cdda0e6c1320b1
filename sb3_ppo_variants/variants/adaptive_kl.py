"""A KL penalty with an adaptive coefficient."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.arguments.rules import POSITIVE, Rule, current_value, documented_like, given_in
from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.objectives import Objective
from sb3_ppo_variants.objectives.surrogates import KL_COEF, AdaptiveKL
from sb3_ppo_variants.updates import NormalizeAdvantage, Updates
from sb3_ppo_variants.variants.clip import PPOClip


@documented_like(PPOClip)
class PPOAdaptiveKL(PPOBase):
    """PPO with an adaptive KL penalty, section 4 of https://arxiv.org/abs/1707.06347.

    It maximises equation 8, E[r A - beta KL(old || new)]. After each update, it computes the exact KL between the
    policy that collected the rollout and the new one, averaged over the rollout, and adapts beta with
    :func:`~sb3_ppo_variants.objectives.surrogates.adapt_kl_coef`.

    :param clip_range: eps, > 0, a number or a schedule; if given, r A is clipped as in :class:`PPOClip`, in addition to
        the penalty
    :param desired_kl: d_targ, > 0, in nats per state
    :param kl_coef: the initial beta, in [1e-6, 1e6]; beta stays within these bounds. If you change the attribute later,
        or pass another value to ``load``, the adaptation begins anew with it
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    :raises MissingKLError: if the policy's distribution has no registered KL
    """

    own_rules: ClassVar[Mapping[str, Rule]] = {
        "clip_range": POSITIVE.or_schedule().or_none(),
        "desired_kl": POSITIVE,
        "kl_coef": KL_COEF,
        "_adapted_kl_coef": KL_COEF.or_none(),
        "_adapted_from": KL_COEF.or_none(),
    }
    clip_range: float | Schedule | None
    desired_kl: float
    kl_coef: float
    # State, not arguments: beta, and the kl_coef with which its adaptation began. Both are saved with the model.
    _adapted_kl_coef: float | None = None
    _adapted_from: float | None = None

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
        desired_kl: float = 0.01,
        kl_coef: float = 1.0,
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | dict[str, Any] | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given_in(locals()))

    @property
    def current_kl_coef(self) -> float:
        """Beta, as adapted so far."""
        if self._adapted_kl_coef is None or self._adapted_from not in (None, self.kl_coef):
            return float(self.kl_coef)
        return self._adapted_kl_coef  # Files of version 1.0.0rc1 do not contain _adapted_from.

    def _objective(self) -> AdaptiveKL:
        clip_range, progress = self.clip_range, self._current_progress_remaining
        return AdaptiveKL(
            kl_coef=self.current_kl_coef,
            desired_kl=self.desired_kl,
            clip_range=None if clip_range is None else current_value("clip_range", clip_range, progress),
        )

    def _keep_objective(self, used: Objective, kl: float | None) -> None:
        assert isinstance(used, AdaptiveKL)
        self._adapted_kl_coef, self._adapted_from = used.after_update(kl).kl_coef, float(self.kl_coef)
