"""The clipped surrogate objective."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.arguments.rules import POSITIVE, Rule, current_value, given_in
from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.objectives import Clipped
from sb3_ppo_variants.updates import NormalizeAdvantage, Updates


class PPOClip(PPOBase):
    """PPO with the clipped surrogate objective, equation 7 of https://arxiv.org/abs/1707.06347.

    It maximises E[min(r A, clip(r, 1 - eps, 1 + eps) A)]. With ``fast=False`` and ``clip_range_vf=None``, it gives the
    same weights as SB3's ``PPO``, bit for bit. Except for the last three arguments, the arguments, their order and
    their defaults are those of SB3's ``PPO``.

    :param policy: the policy's class or its alias: ``"MlpPolicy"``, ``"CnnPolicy"`` or ``"MultiInputPolicy"``; with
        sb3-contrib also ``"MaskableMlpPolicy"``, ``"MlpLstmPolicy"`` and so on
    :param env: a gymnasium or vectorised environment, or the id of a registered one
    :param learning_rate: Adam's step size, >= 0, a number or a schedule of the remaining progress (from 1 to 0)
    :param n_steps: steps per environment in a rollout
    :param batch_size: samples in a minibatch
    :param n_epochs: passes over the rollout in an update
    :param gamma: discount factor, in [0, 1]
    :param gae_lambda: lambda of generalised advantage estimation, in [0, 1]
    :param clip_range: eps, > 0, a number or a schedule
    :param clip_range_vf: how far a value may move before it is clipped, in units of the return, > 0, a number or a
        schedule; ``None`` does not clip. See :func:`sb3_ppo_variants.losses.value_loss`
    :param normalize_advantage: True or ``"minibatch"`` normalises advantages in each minibatch, ``"rollout"`` once over
        the rollout (as the code released with the paper does), and False not at all
    :param ent_coef: coefficient of the entropy bonus
    :param vf_coef: coefficient of the value loss, >= 0; the loss itself has no factor 1/2
    :param max_grad_norm: maximum norm of the gradient, >= 0; ``None`` does not clip
    :param use_sde: whether to explore with generalised state-dependent noise (gSDE); needs a Box action space
    :param sde_sample_freq: steps between new noise matrices, -1 for one per rollout
    :param rollout_buffer_class: class of the rollout buffer; ``None`` chooses one for the observation space
    :param rollout_buffer_kwargs: additional arguments of the rollout buffer
    :param target_kl: an update stops early once the approximate KL of a minibatch exceeds 1.5 times this; ``None``
        never stops early
    :param stats_window_size: number of episodes over which rollout statistics are averaged
    :param tensorboard_log: folder for TensorBoard logs; ``None`` disables them
    :param policy_kwargs: additional arguments of the policy
    :param verbose: 0 prints nothing, 1 messages, 2 debug messages
    :param seed: seed of all random generators
    :param device: ``"cpu"``, ``"cuda"``, ... or ``"auto"``: the CPU for an ``MlpPolicy`` with SB3's features extractor,
        else a GPU if there is one
    :param _init_setup_model: whether to build the networks at construction
    :param fast: ``"auto"`` uses the fast path where the policy allows it, and the reference path otherwise; True
        requires the fast path; False uses the reference path
    :param updates: ``SeparateUpdates(...)``, or a dict of its arguments, updates the policy and the value function
        separately; ``None`` updates both together, as SB3 does
    :param data_parallel: ``"auto"`` trains together with the other processes of the ``torch.distributed`` process
        group, if there is one; True requires a process group; False trains alone
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    # SB3's PPO has the same objective, so load() accepts its files.
    reads_sb3s_ppo: ClassVar[bool] = True
    own_rules: ClassVar[Mapping[str, Rule]] = {"clip_range": POSITIVE.or_schedule()}
    clip_range: float | Schedule

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
        clip_range: float | Schedule = 0.2,
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

    def _objective(self) -> Clipped:
        return Clipped(current_value("clip_range", self.clip_range, self._current_progress_remaining))
