"""The clipped surrogate objective."""

from typing import Any, ClassVar, Literal

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.base import POSITIVE, Coefficients, Rule, given
from sb3_ppo_variants.fast.algorithm import FastPPO, written_out
from sb3_ppo_variants.losses import clipped_surrogate_loss


class PPOClip(FastPPO):
    """PPO with the clipped surrogate objective, equation 7 of https://arxiv.org/abs/1707.06347.

    It maximises E[min(r A, clip(r, 1 - eps, 1 + eps) A)]. With ``clip_range_vf=None`` it is SB3's ``PPO`` bit for bit.

    Arguments are those of :class:`~sb3_ppo_variants.fast.algorithm.FastPPO` and:

    :param clip_range: eps, > 0, a number or a schedule
    """

    # Whose objective this is.
    reads_sb3s_ppo: ClassVar[bool] = True
    clip_range: float | Schedule
    own_arguments: ClassVar[dict[str, Rule]] = {"clip_range": POSITIVE.or_schedule()}

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
        clip_range: float | Schedule = 0.2,
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
        fast: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given(locals()))

    def _coefficients(self) -> Coefficients:
        return super()._coefficients()._replace(clip_range=self._current("clip_range"))

    @written_out
    def _policy_loss(
        self, ratio: th.Tensor, advantages: th.Tensor, kl: th.Tensor | None, coefficients: Coefficients
    ) -> th.Tensor:
        assert coefficients.clip_range is not None
        return clipped_surrogate_loss(ratio, advantages, coefficients.clip_range)
