"""The surrogate objective as it is."""

from typing import Any, Literal

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.base import Coefficients, given
from sb3_ppo_variants.fast.algorithm import FastPPO, written_out
from sb3_ppo_variants.losses import surrogate_loss


class PPOUnclipped(FastPPO):
    """PPO with "no clipping or penalty", equation 6 of https://arxiv.org/abs/1707.06347.

    It maximises L^CPI = E[r A], the baseline that the paper compares the others with. Nothing but ``target_kl`` limits
    how far an update goes.

    Arguments are those of :class:`~sb3_ppo_variants.fast.algorithm.FastPPO`.
    """

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

    @written_out
    def _policy_loss(
        self, ratio: th.Tensor, advantages: th.Tensor, kl: th.Tensor | None, coefficients: Coefficients
    ) -> th.Tensor:
        return surrogate_loss(ratio, advantages)
