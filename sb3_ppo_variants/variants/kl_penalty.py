"""What the KL-penalised variants share: equation 8 of the paper."""

from abc import abstractmethod

import torch as th
from stable_baselines3.common.type_aliases import Schedule

from sb3_ppo_variants.base import Coefficients
from sb3_ppo_variants.fast.algorithm import FastPPO, written_out
from sb3_ppo_variants.kl import exact_kl
from sb3_ppo_variants.losses import kl_penalized_loss


class PPOKLPenalty(FastPPO):
    """PPO that maximises E[r A - beta KL(old || new)]; a subclass says what beta is."""

    clip_range: float | Schedule | None

    @property
    @abstractmethod
    def current_kl_coef(self) -> float:
        """beta in the present update."""

    def _setup_model(self) -> None:
        super()._setup_model()
        exact_kl(self.policy.action_dist)  # Without one, fail before the first rollout.

    def _coefficients(self) -> Coefficients:
        return super()._coefficients()._replace(clip_range=self._current("clip_range"), kl_coef=self.current_kl_coef)

    @written_out
    def _policy_loss(
        self, ratio: th.Tensor, advantages: th.Tensor, kl: th.Tensor | None, coefficients: Coefficients
    ) -> th.Tensor:
        assert kl is not None and coefficients.kl_coef is not None
        return kl_penalized_loss(ratio, advantages, kl, coefficients.kl_coef, coefficients.clip_range)
