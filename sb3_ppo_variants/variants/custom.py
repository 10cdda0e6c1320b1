"""PPO with your own objective."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_ppo_variants.arguments.rules import Rule, instance
from sb3_ppo_variants.base import PPOBase
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.objectives import Objective
from sb3_ppo_variants.updates import NormalizeAdvantage, Updates
from sb3_ppo_variants.updates.measured import LOGGED


class PPOCustom(PPOBase):
    """PPO with your own objective.

    The objective is saved with the model, so its class must be importable where the model is loaded.

    :param policy: the policy's class or its alias: ``"MlpPolicy"``, ``"CnnPolicy"`` or ``"MultiInputPolicy"``; with
        sb3-contrib also ``"MaskableMlpPolicy"``, ``"MlpLstmPolicy"`` and so on
    :param env: a gymnasium or vectorised environment, or the id of a registered one
    :param learning_rate: Adam's step size, >= 0, a number or a schedule of the remaining progress (from 1 to 0)
    :param n_steps: steps per environment in a rollout
    :param batch_size: samples in a minibatch
    :param n_epochs: passes over the rollout in an update
    :param gamma: discount factor, in [0, 1]
    :param gae_lambda: lambda of generalised advantage estimation, in [0, 1]
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
    :param objective: an instance of a subclass of :class:`~sb3_ppo_variants.Objective`. It can train on the array path
        if it is an :class:`~sb3_ppo_variants.ArrayObjective`
    :param fast: ``"auto"`` uses the fast path where the policy allows it, and the reference path otherwise; True
        requires the fast path; False uses the reference path
    :param updates: ``SeparateUpdates(...)``, or a dict of its arguments, updates the policy and the value function
        separately; ``None`` updates both together, as SB3 does
    :param data_parallel: ``"auto"`` trains together with the other processes of the ``torch.distributed`` process
        group, if there is one; True requires a process group; False trains alone
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    :raises MissingKLError: if the policy's distribution has no registered KL and the objective needs one
    """

    own_rules: ClassVar[Mapping[str, Rule]] = {
        "objective": instance("an instance of a class derived from Objective", Objective)
    }
    objective: Any

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
        objective: Objective | None = None,
        fast: bool | Literal["auto"] = "auto",
        updates: Updates | dict[str, Any] | None = None,
        data_parallel: bool | Literal["auto"] = "auto",
    ):
        self.objective = objective
        super().__init__(
            policy=policy, env=env, learning_rate=learning_rate, n_steps=n_steps, batch_size=batch_size,
            n_epochs=n_epochs, gamma=gamma, gae_lambda=gae_lambda, clip_range_vf=clip_range_vf,
            normalize_advantage=normalize_advantage, ent_coef=ent_coef, vf_coef=vf_coef, max_grad_norm=max_grad_norm,
            use_sde=use_sde, sde_sample_freq=sde_sample_freq, rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs, target_kl=target_kl, stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log, policy_kwargs=policy_kwargs, verbose=verbose, seed=seed, device=device,
            _init_setup_model=_init_setup_model, fast=fast, updates=updates, data_parallel=data_parallel,
        )  # fmt: skip

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
        taken = sorted(LOGGED & objective.coefficients().keys())
        if taken:
            raise ArgumentError(
                f"{type(objective).__name__}.coefficients returned a coefficient named {taken[0]!r}, but another value "
                f"is logged as train/{taken[0]}: give it another name"
            )
        return objective
