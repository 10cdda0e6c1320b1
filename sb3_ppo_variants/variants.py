"""PPO with each of the four policy objectives of the paper, and with your own objective.

Each class writes its whole signature, in the order of SB3's ``PPO``, and says what its own arguments may be
(``rules``) and which objective they make (``_objective``). :class:`PPOClip` documents the arguments that all share.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.arguments import NON_NEGATIVE, POSITIVE, Rule, Values, explain_unknown, given_in, instance
from sb3_ppo_variants.checks import check_coefficients
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.limits import EarlyStop, KLAdaptive
from sb3_ppo_variants.losses import ValueLoss
from sb3_ppo_variants.objectives import AdaptiveKL, Clipped, KLPenalized, Objective, Unclipped
from sb3_ppo_variants.objectives.surrogates import KL_COEF
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.statistics import LOGGED
from sb3_ppo_variants.update import NormalizeAdvantage, Updates

__all__ = ["PPOAdaptiveKL", "PPOClip", "PPOCustom", "PPOFixedKL", "PPOUnclipped"]


class PPOClip(PPOBase):
    """PPO with the clipped surrogate objective, equation 7 of https://arxiv.org/abs/1707.06347.

    It maximises E[min(r A, clip(r, 1 - eps, 1 + eps) A)]. With ``fast=False`` and ``clip_range_vf=None``, it gives the
    same weights as SB3's ``PPO``, bit for bit. Except for the last five arguments, the arguments, their order and
    their defaults are those of SB3's ``PPO``.

    :param policy: the policy's class or its alias: ``"MlpPolicy"``, ``"CnnPolicy"`` or ``"MultiInputPolicy"``; with
        sb3-contrib also ``"MaskableMlpPolicy"``, ``"MlpLstmPolicy"``, ``"MaskableMlpLstmPolicy"`` and so on
    :param env: a gymnasium or vectorised environment, or the id of a registered one
    :param learning_rate: Adam's step size, >= 0, a number or a schedule of the remaining progress (from 1 to 0), or
        :class:`~sb3_ppo_variants.KLAdaptive`, which adapts it to the KL of the updates
    :param n_steps: steps per environment in a rollout
    :param batch_size: samples in a minibatch
    :param n_epochs: passes over the rollout in an update
    :param gamma: discount factor, in [0, 1]
    :param gae_lambda: lambda of generalised advantage estimation, in [0, 1], a number or a schedule
    :param clip_range: eps, > 0, a number or a schedule
    :param clip_range_vf: how far a value may move before it is clipped, in units of the return, > 0, a number or a
        schedule; ``None`` does not clip. It means ``value_loss=ClippedError(clip_range_vf)``
    :param normalize_advantage: True or ``"minibatch"`` normalises advantages in each minibatch, ``"rollout"`` once over
        the rollout (as the code released with the paper does), and False not at all
    :param ent_coef: coefficient of the entropy bonus, a number or a schedule
    :param vf_coef: coefficient of the value loss, >= 0, a number or a schedule; the loss itself has no factor 1/2
    :param max_grad_norm: maximum norm of the gradient, >= 0; ``None`` does not clip
    :param use_sde: whether to explore with generalised state-dependent noise (gSDE); needs a Box action space
    :param sde_sample_freq: steps between new noise matrices, -1 for one per rollout
    :param rollout_buffer_class: class of the rollout buffer; ``None`` chooses one for the observation space
    :param rollout_buffer_kwargs: additional arguments of the rollout buffer
    :param target_kl: an update stops early once the approximate KL of a minibatch exceeds 1.5 times this, a number > 0
        or a schedule; ``None`` never stops early
    :param stats_window_size: number of episodes over which rollout statistics are averaged
    :param tensorboard_log: folder for TensorBoard logs; ``None`` disables them
    :param policy_kwargs: additional arguments of the policy; besides SB3's, ``distribution`` and ``std`` say how
        continuous actions are drawn (:mod:`sb3_ppo_variants.distributions`), and with Dict observations ``actor_keys``
        and ``critic_keys`` are lists of the observations that the actor and the critic see (all by default)
    :param verbose: 0 prints nothing, 1 messages, 2 debug messages
    :param seed: seed of all random generators
    :param device: ``"cpu"``, ``"cuda"``, ... or ``"auto"``: the CPU for an ``MlpPolicy`` with SB3's features extractor,
        else a GPU if there is one
    :param _init_setup_model: whether to build the networks at construction
    :param fast: ``"auto"`` uses the fast path where the policy allows it, and the reference path otherwise; True
        requires the fast path; False uses the reference path
    :param updates: ``SeparateUpdates(...)``, or a dict of its arguments, updates the policy and the value function
        separately; ``None`` updates both together, as SB3 does
    :param stop: ends an update early, instead of ``target_kl``: :class:`~sb3_ppo_variants.ApproximateKL`,
        :class:`~sb3_ppo_variants.ExactKL` or :class:`~sb3_ppo_variants.RatioDeviation`; ``None`` uses the
        rule of the objective, and only those of :class:`~sb3_ppo_variants.PPOCustom` may have one
    :param value_loss: the value loss, instead of ``clip_range_vf``: :class:`~sb3_ppo_variants.SquaredError` (which
        ``None`` means), :class:`~sb3_ppo_variants.ClippedError`, :class:`~sb3_ppo_variants.Huber`, or your own
        :class:`~sb3_ppo_variants.ValueLoss`
    :param data_parallel: ``"auto"`` trains together with the other processes of the ``torch.distributed`` process
        group, if there is one; True requires a process group; False trains alone
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    # SB3's PPO has the same objective, so load() accepts its files.
    reads_sb3s_ppo: ClassVar[bool] = True
    rules: ClassVar[Mapping[str, Rule]] = {**PPOBase.rules, "clip_range": POSITIVE.or_schedule()}
    clip_range: float | Schedule

    @explain_unknown
    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | VectorEnv | str,
        learning_rate: float | Schedule | KLAdaptive = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float | Schedule = 0.95,
        clip_range: float | Schedule = 0.2,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: NormalizeAdvantage = True,
        ent_coef: float | Schedule = 0.0,
        vf_coef: float | Schedule = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: Values | None = None,
        target_kl: float | Schedule | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Values | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | Values | None = None,
        stop: EarlyStop | None = None,
        value_loss: ValueLoss | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given_in(locals()))

    def _objective(self) -> Clipped:
        return Clipped(self.current_argument("clip_range"))


class PPOAdaptiveKL(PPOBase):
    """PPO with an adaptive KL penalty, section 4 of https://arxiv.org/abs/1707.06347.

    It maximises equation 8, E[r A - beta KL(old || new)]. After each update, it computes the exact KL between the
    policy that collected the rollout and the new one, averaged over the rollout, and adapts beta with
    :func:`~sb3_ppo_variants.objectives.surrogates.adapt_kl_coef`.

    Arguments that are not listed here are those of :class:`PPOClip`.

    :param clip_range: eps, > 0, a number or a schedule; if given, r A is clipped as in :class:`PPOClip`, in addition to
        the penalty
    :param desired_kl: d_targ, > 0, in nats per state
    :param kl_coef: the initial beta, in [1e-6, 1e6]; beta stays within these bounds. The attribute is the current beta:
        each update adapts it, files keep it, and you may set it
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    :raises MissingKLError: if the policy's distribution has no registered KL
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        **PPOBase.rules,
        "clip_range": POSITIVE.or_schedule().or_none(),
        "desired_kl": POSITIVE,
        "kl_coef": KL_COEF,
    }
    clip_range: float | Schedule | None
    desired_kl: float
    kl_coef: float

    @explain_unknown
    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | VectorEnv | str,
        learning_rate: float | Schedule | KLAdaptive = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float | Schedule = 0.95,
        clip_range: float | Schedule | None = None,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: NormalizeAdvantage = True,
        ent_coef: float | Schedule = 0.0,
        vf_coef: float | Schedule = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: Values | None = None,
        target_kl: float | Schedule | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Values | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        desired_kl: float = 0.01,
        kl_coef: float = 1.0,
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | Values | None = None,
        stop: EarlyStop | None = None,
        value_loss: ValueLoss | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given_in(locals()))

    def _objective(self) -> AdaptiveKL:
        clip_range = None if self.clip_range is None else self.current_argument("clip_range")
        return AdaptiveKL(kl_coef=float(self.kl_coef), desired_kl=self.desired_kl, clip_range=clip_range)

    def _after_update(self, kl: float | None) -> None:
        self.kl_coef = self._objective().after_update(kl).kl_coef


class PPOFixedKL(PPOBase):
    """PPO with a fixed KL penalty, equation 8 of https://arxiv.org/abs/1707.06347 with a constant beta.

    It maximises E[r A - beta KL(old || new)], where the KL is exact and summed over action dimensions.

    Arguments that are not listed here are those of :class:`PPOClip`.

    :param clip_range: eps, > 0, a number or a schedule; if given, r A is clipped as in :class:`PPOClip`, in addition to
        the penalty
    :param kl_coef: beta, >= 0, a number or a schedule
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    :raises MissingKLError: if the policy's distribution has no registered KL
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        **PPOBase.rules,
        "clip_range": POSITIVE.or_schedule().or_none(),
        "kl_coef": NON_NEGATIVE.or_schedule(),
    }
    clip_range: float | Schedule | None
    kl_coef: float | Schedule

    @explain_unknown
    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | VectorEnv | str,
        learning_rate: float | Schedule | KLAdaptive = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float | Schedule = 0.95,
        clip_range: float | Schedule | None = None,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: NormalizeAdvantage = True,
        ent_coef: float | Schedule = 0.0,
        vf_coef: float | Schedule = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: Values | None = None,
        target_kl: float | Schedule | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Values | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        kl_coef: float | Schedule = 1.0,
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | Values | None = None,
        stop: EarlyStop | None = None,
        value_loss: ValueLoss | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given_in(locals()))

    def _objective(self) -> KLPenalized:
        clip_range = None if self.clip_range is None else self.current_argument("clip_range")
        return KLPenalized(kl_coef=self.current_argument("kl_coef"), clip_range=clip_range)


class PPOUnclipped(PPOBase):
    """PPO with "no clipping or penalty", equation 6 of https://arxiv.org/abs/1707.06347.

    It maximises L^CPI = E[r A], the baseline with which the paper compares the other objectives. Only ``target_kl``
    or ``stop`` limits the size of an update.

    The arguments are those of :class:`PPOClip`, except ``clip_range``.

    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    @explain_unknown
    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | VectorEnv | str,
        learning_rate: float | Schedule | KLAdaptive = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float | Schedule = 0.95,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: NormalizeAdvantage = True,
        ent_coef: float | Schedule = 0.0,
        vf_coef: float | Schedule = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: Values | None = None,
        target_kl: float | Schedule | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Values | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | Values | None = None,
        stop: EarlyStop | None = None,
        value_loss: ValueLoss | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given_in(locals()))

    def _objective(self) -> Unclipped:
        return Unclipped()


class PPOCustom(PPOBase):
    """PPO with your own objective.

    The objective is saved with the model, so its class must be importable where the model is loaded. An
    objective of your own is pickled.

    Arguments that are not listed here are those of :class:`PPOClip`.

    :param objective: an instance of a subclass of :class:`~sb3_ppo_variants.Objective`
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    :raises MissingKLError: if the policy's distribution has no registered KL and the objective needs one
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        **PPOBase.rules,
        "objective": instance("an instance of a class derived from Objective, such as Clipped(0.2)", Objective),
    }
    objective: Objective

    @explain_unknown
    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | VectorEnv | str,
        learning_rate: float | Schedule | KLAdaptive = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float | Schedule = 0.95,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: NormalizeAdvantage = True,
        ent_coef: float | Schedule = 0.0,
        vf_coef: float | Schedule = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: Values | None = None,
        target_kl: float | Schedule | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Values | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        objective: Objective | None = None,
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | Values | None = None,
        stop: EarlyStop | None = None,
        value_loss: ValueLoss | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        super().__init__(**given_in(locals()))

    def _objective(self) -> Objective:
        # The last rollout may take more steps than requested, and SB3's remaining progress is then negative.
        progress_remaining = max(self._current_progress_remaining, 0.0)
        return self._returned("at", self.objective.at(progress_remaining))

    def _after_update(self, kl: float | None) -> None:
        self.objective = self._returned("after_update", self.objective.after_update(kl))

    def _returned(self, method: str, objective: object) -> Objective:
        if not isinstance(objective, Objective):
            name = type(self.objective).__name__
            raise ArgumentError(f"{name}.{method} returned {objective!r}; allowed: an objective, such as self")
        check_coefficients(objective, LOGGED)
        return objective
