"""A KL penalty with a fixed coefficient."""

from typing import Any, ClassVar, Literal

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.base import NON_NEGATIVE, POSITIVE, Rule, given
from sb3_ppo_variants.base.coefficients import current_value
from sb3_ppo_variants.variants.kl_penalty import PPOKLPenalty


class PPOFixedKL(PPOKLPenalty):
    """PPO with a fixed KL penalty, equation 8 of https://arxiv.org/abs/1707.06347 with a constant beta.

    It maximises E[r A - beta KL(old || new)], where the KL is exact and summed over action dimensions.

    Arguments are those of :class:`~sb3_ppo_variants.fast.algorithm.FastPPO` and:

    :param clip_range: eps, > 0, a number or a schedule; if given, r A is clipped as in :class:`PPOClip`, in addition to
        the penalty
    :param kl_coef: beta, >= 0, a number or a schedule
    """

    kl_coef: float | Schedule
    own_arguments: ClassVar[dict[str, Rule]] = {
        "clip_range": POSITIVE.or_schedule().or_none(),
        "kl_coef": NON_NEGATIVE.or_schedule(),
    }

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule | None = None,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
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
    ):
        super().__init__(**given(locals()))

    @property
    def current_kl_coef(self) -> float:
        """beta at the present progress."""
        return current_value("kl_coef", self.kl_coef, self._current_progress_remaining)
