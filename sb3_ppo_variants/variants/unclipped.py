"""The surrogate objective without clipping or penalty."""

from typing import Any, Literal

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.arguments.rules import documented_like, given_in
from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.objectives import Unclipped
from sb3_ppo_variants.updates import NormalizeAdvantage, Updates
from sb3_ppo_variants.variants.clip import PPOClip


@documented_like(PPOClip)
class PPOUnclipped(PPOBase):
    """PPO with "no clipping or penalty", equation 6 of https://arxiv.org/abs/1707.06347.

    It maximises L^CPI = E[r A], the baseline with which the paper compares the other objectives. Only ``target_kl``
    limits the size of an update.

    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

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
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | dict[str, Any] | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given_in(locals()))

    def _objective(self) -> Unclipped:
        return Unclipped()
