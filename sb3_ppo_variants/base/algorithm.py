"""The one training loop of all variants."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch as th
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    BasePolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule, explained_variance, update_learning_rate
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.base.arguments import (
    ACTION_SPACES,
    RULES,
    Rule,
    check_arguments,
    check_batch,
    check_buffer,
    check_spaces,
    warn_of_truncated_minibatch,
)
from sb3_ppo_variants.base.coefficients import Coefficients, current_value
from sb3_ppo_variants.base.finite import check_parameters, check_rollout
from sb3_ppo_variants.base.nested_arguments import check_buffer_arguments, check_observations, check_policy
from sb3_ppo_variants.base.update import TorchUpdate, Update
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.guards import Supervised, check_seen, guarded, original
from sb3_ppo_variants.saving import SavedAlgorithm

SelfPPO = TypeVar("SelfPPO", bound="PPOBase")


class PPOBase(SavedAlgorithm):
    """Proximal Policy Optimization without its policy objective, which a subclass defines.

    A subclass says what its objective is (:meth:`_policy_loss`), which coefficients the objective has in the present
    update (:meth:`_coefficients`) and, if anything, what follows from an update (:meth:`_after_update`).

    Arguments, their order and defaults are those of :class:`stable_baselines3.PPO`:

    :param policy: the policy's class or its alias: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"``
    :param env: a gymnasium environment, a vectorised one, or the id of a registered one
    :param learning_rate: Adam's step size, >= 0, a number or a schedule of the remaining progress (from 1 to 0)
    :param n_steps: environment steps per environment and rollout
    :param batch_size: samples in a minibatch
    :param n_epochs: passes over the rollout in an update
    :param gamma: discount factor, in [0, 1]
    :param gae_lambda: lambda of generalised advantage estimation, in [0, 1]
    :param clip_range_vf: clipping of the value function in units of the return, > 0, a number or a schedule; ``None``
        does not clip. See :func:`sb3_ppo_variants.losses.value_loss`
    :param normalize_advantage: whether advantages are normalised in each minibatch
    :param ent_coef: coefficient of the entropy bonus
    :param vf_coef: coefficient of the value loss, >= 0; it includes the factor 1/2
    :param max_grad_norm: largest norm of the gradient, >= 0
    :param use_sde: whether to explore by generalised state-dependent noise (gSDE); needs a Box action space
    :param sde_sample_freq: steps between new noise matrices, -1 for one per rollout
    :param rollout_buffer_class: class of the rollout buffer; ``None`` chooses it by the observation space
    :param rollout_buffer_kwargs: further arguments of the rollout buffer
    :param target_kl: an update stops early once the approximate KL of a minibatch exceeds 1.5 times this; ``None``
        never stops
    :param stats_window_size: number of episodes that rollout statistics are averaged over
    :param tensorboard_log: folder for TensorBoard; ``None`` does not log
    :param policy_kwargs: further arguments of the policy
    :param verbose: 0 prints nothing, 1 messages, 2 debug messages
    :param seed: seed of all random generators
    :param device: ``"cpu"``, ``"cuda"``, ... or ``"auto"``
    :param _init_setup_model: whether to build the networks at construction
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    :raises MissingKLError: if the objective has a KL penalty and the policy's distribution no registered KL
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": ActorCriticPolicy,
        "CnnPolicy": ActorCriticCnnPolicy,
        "MultiInputPolicy": MultiInputActorCriticPolicy,
    }
    # The arguments that a subclass adds, each with the values it may have. They become attributes of the same names.
    own_arguments: ClassVar[dict[str, Rule]] = {}
    # Turned off only to measure what the guards cost.
    _guarded: ClassVar[bool] = True

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | str,
        *,
        batch_size: int,
        n_epochs: int,
        clip_range_vf: float | Schedule | None,
        normalize_advantage: bool,
        target_kl: float | None,
        verbose: int,
        use_sde: bool,
        _init_setup_model: bool,
        **arguments: Any,
    ):
        # Before anything is made of them.
        check_arguments(arguments | locals(), self._rules())
        check_policy(policy, self.policy_aliases, arguments["policy_kwargs"])
        check_buffer_arguments(arguments["rollout_buffer_class"], arguments["rollout_buffer_kwargs"])
        if env is not None:
            env = self._wrap_env(maybe_make_env(env, verbose), verbose)
            check_spaces(env.action_space, use_sde)
            check_observations(policy, env.observation_space)
        elif _init_setup_model:
            refuse("env", env, "an environment or the id of one")
        own = {name: arguments.pop(name) for name in self.own_arguments}
        super().__init__(
            policy,
            env,
            verbose=verbose,
            use_sde=use_sde,
            supported_action_spaces=ACTION_SPACES,
            _init_setup_model=False,
            **arguments,
        )
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.clip_range_vf = clip_range_vf
        self.normalize_advantage = normalize_advantage
        self.target_kl = target_kl
        vars(self).update(own)
        if _init_setup_model:
            self._setup_model()
            warn_of_truncated_minibatch(n_steps=self.n_steps, n_envs=self.n_envs, batch_size=batch_size)

    @classmethod
    def _rules(cls) -> dict[str, Rule]:
        return {**RULES, **cls.own_arguments}

    def _setup_model(self) -> None:
        # Again, because load() sets attributes between construction and this call.
        check_arguments(vars(self), self._rules())
        check_batch(self.n_steps, self.n_envs, self.batch_size, self.normalize_advantage)
        check_buffer(self.rollout_buffer_class, self.observation_space)
        schedules = [name for name, rule in self._rules().items() if rule.takes_schedule and hasattr(self, name)]
        schedules = [name for name in schedules if getattr(self, name) is not None]
        for name in schedules:
            current_value(name, getattr(self, name), progress_remaining=1.0)
        super()._setup_model()
        for name in schedules:
            if name != "learning_rate":
                setattr(self, name, FloatSchedule(getattr(self, name)))

    # What a variant defines

    @abstractmethod
    def _policy_loss(
        self, ratio: th.Tensor, advantages: th.Tensor, kl: th.Tensor | None, coefficients: Coefficients
    ) -> th.Tensor:
        """The variant's objective, negated.

        :param ratio: pi(a|s) / pi_old(a|s), shape ``(batch,)``
        :param advantages: advantages, normalised if so configured, shape ``(batch,)``
        :param kl: KL(old || new) in each state, shape ``(batch,)``; ``None`` without ``coefficients.kl_coef``
        :param coefficients: what :meth:`_coefficients` returned for this update
        :return: a scalar
        """

    def _coefficients(self) -> Coefficients:
        """The coefficients of this update's objective."""
        return Coefficients(clip_range_vf=self._current("clip_range_vf"))

    def _after_update(self, kl: float) -> None:
        """Called once at the end of every update, if the KL of the policy's distribution is known.

        :param kl: the mean of KL(old || new) over the rollout
        """

    # The loop

    def train(self) -> None:
        """Update the policy with the rollout in the buffer."""
        learning_rate = current_value("learning_rate", self.lr_schedule, self._current_progress_remaining)
        coefficients = self._coefficients()
        if self._guarded:
            check_rollout(self.rollout_buffer, self.num_timesteps)
        self.policy.set_training_mode(True)
        update_learning_rate(self.policy.optimizer, learning_rate)
        update = self._begin_update(coefficients)
        try:
            n_epochs = self._train_epochs(update)
            kl = update.finish()
        except BaseException:
            update.undo()
            raise
        self._n_updates += n_epochs
        self.logger.record("train/learning_rate", learning_rate)
        self._log(update.statistics(), coefficients, kl)
        if kl is not None:
            self._after_update(kl)

    def _begin_update(self, coefficients: Coefficients) -> Update:
        return TorchUpdate(self, coefficients)

    def _train_epochs(self, update: Update) -> int:
        """All passes over the rollout, or fewer if ``target_kl`` ended them early.

        :return: how many began
        :raises NonFiniteError: if a loss, a gradient or a parameter is not finite
        """
        epoch = 0
        try:
            for epoch in range(self.n_epochs):
                if not self._train_epoch(epoch, update):
                    break
        except (ValueError, RuntimeError):
            # PyTorch refuses what follows from a step that was not finite, and does not say what was not.
            update.check_finite()
            raise
        if self._guarded:
            update.check_finite()
        return epoch + 1

    def _train_epoch(self, epoch: int, update: Update) -> bool:
        """One pass over the rollout.

        :return: False if ``target_kl`` ended it early
        """
        for minibatch in update.minibatches():
            update.loss(minibatch)
            if self.target_kl is not None:
                approx_kl = update.approximate_kl()
                if approx_kl > 1.5 * self.target_kl:
                    if self.verbose >= 1:
                        print(f"Early stopping at step {epoch} due to reaching max kl: {approx_kl:.2f}")
                    return False
            update.step()
        return True

    def _current(self, name: str) -> float | None:
        """The value in this update of an argument that takes a schedule or ``None``.

        :raises ArgumentError: if its schedule returns a value that is not allowed
        """
        schedule = getattr(self, name)
        return None if schedule is None else current_value(name, schedule, self._current_progress_remaining)

    def _log(self, summary: dict[str, float], coefficients: Coefficients, kl: float | None) -> None:
        record = self.logger.record
        for key, value in summary.items():
            record(key, value)
        for name, coefficient in coefficients._asdict().items():
            if coefficient is not None:
                record(f"train/{name}", coefficient)
        if kl is not None:
            record("train/kl", kl)
        buffer = self.rollout_buffer
        record("train/explained_variance", explained_variance(buffer.values.flatten(), buffer.returns.flatten()))
        if hasattr(self.policy, "log_std"):
            record("train/std", th.exp(self.policy.log_std).mean().item())
        record("train/n_updates", self._n_updates, exclude="tensorboard")

    def learn(
        self: SelfPPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfPPO:
        """Train; as in SB3, except that ``tb_log_name`` defaults to the name of the class.

        :param total_timesteps: number of environment steps, rounded up to whole rollouts
        :param callback: callback or callbacks called at every step
        :param log_interval: updates between two lines of the log
        :param tb_log_name: name of the run in TensorBoard
        :param reset_num_timesteps: whether to count steps anew
        :param progress_bar: whether to show a progress bar (needs tqdm and rich)
        :return: the model
        :raises NonFiniteError: if a number from an environment, of the policy or of an update is not finite; the policy
            is then as the last update left it
        :raises EnvOutputError: if an environment returns something of a wrong type or shape
        :raises WorkerError: if a worker of a ``SubprocVecEnv`` ends
        :raises CallbackError: if a callback returns None
        """
        supervised = Supervised(callback, progress_bar)
        with self._guards(), supervised.to_the_end():
            return super().learn(
                total_timesteps=total_timesteps,
                callback=supervised,
                log_interval=log_interval,
                tb_log_name=type(self).__name__ if tb_log_name is None else tb_log_name,
                reset_num_timesteps=reset_num_timesteps,
            )

    @contextmanager
    def _guards(self) -> Iterator[None]:
        """Within it the environments are checked, and an error that follows from a number names the number."""
        if not self._guarded or self.env is None:
            yield
            return
        try:
            with guarded(self):
                yield
        except (ValueError, RuntimeError):
            check_parameters(self.policy)
            check_seen(self)
            raise

    def get_env(self) -> VecEnv | None:
        """The environment that the model was given; callbacks get it too while another stands in for it."""
        return None if self.env is None else original(self.env)
