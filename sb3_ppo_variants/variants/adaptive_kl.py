"""A KL penalty with an adaptive coefficient."""

from typing import Any, ClassVar, Literal

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.base import POSITIVE, Rule, given, number
from sb3_ppo_variants.variants.kl_penalty import PPOKLPenalty

# The rule of section 4 of the paper.
TOLERANCE = 1.5
FACTOR = 2.0
# Beta stays within these bounds, which keep it finite and let it come back from a long time on one side of the target.
MIN_KL_COEF = 1e-6
MAX_KL_COEF = 1e6


def adapt_kl_coef(kl_coef: float, kl: float, desired_kl: float) -> float:
    """The coefficient for the next update, section 4 of https://arxiv.org/abs/1707.06347.

    If d < d_targ / 1.5, beta is halved; if d > 1.5 d_targ, it is doubled.

    :param kl_coef: beta
    :param kl: d, the mean of KL(old || new) after the update
    :param desired_kl: d_targ
    :return: the next beta, between ``MIN_KL_COEF`` and ``MAX_KL_COEF``
    """
    if kl < desired_kl / TOLERANCE:
        kl_coef /= FACTOR
    elif kl > desired_kl * TOLERANCE:
        kl_coef *= FACTOR
    return min(max(kl_coef, MIN_KL_COEF), MAX_KL_COEF)


class PPOAdaptiveKL(PPOKLPenalty):
    """PPO with an adaptive KL penalty, section 4 of https://arxiv.org/abs/1707.06347.

    It maximises equation 8, E[r A - beta KL(old || new)], and after each update changes beta by
    :func:`adapt_kl_coef`, given the exact KL of the new policy against the one that collected the rollout, over the
    whole rollout.

    Arguments are those of :class:`~sb3_ppo_variants.fast.algorithm.FastPPO` and:

    :param clip_range: eps, > 0, a number or a schedule; if given, r A is clipped as in :class:`PPOClip`, in addition to
        the penalty
    :param desired_kl: d_targ, > 0, in nats per state
    :param kl_coef: the initial beta, in [1e-6, 1e6], where beta also stays
    """

    desired_kl: float
    kl_coef: float
    own_arguments: ClassVar[dict[str, Rule]] = {
        "clip_range": POSITIVE.or_schedule().or_none(),
        "desired_kl": POSITIVE,
        "kl_coef": number(
            f"a number in [{MIN_KL_COEF:g}, {MAX_KL_COEF:g}]", lambda value: MIN_KL_COEF <= value <= MAX_KL_COEF
        ),
    }
    # State, not an argument: it is saved, and load() restores it whatever kl_coef it is given.
    _adapted_kl_coef: float | None = None

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
        desired_kl: float = 0.01,
        kl_coef: float = 1.0,
        fast: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given(locals()))

    @property
    def current_kl_coef(self) -> float:
        """beta, as adapted so far."""
        return float(self.kl_coef) if self._adapted_kl_coef is None else self._adapted_kl_coef

    def _after_update(self, kl: float) -> None:
        self._adapted_kl_coef = adapt_kl_coef(self.current_kl_coef, kl, self.desired_kl)
