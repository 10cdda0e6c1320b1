"""The training loop that all variants share: plan an update, collect a rollout, run the update, log."""

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import ceil
from numbers import Real
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback, Schedule
from stable_baselines3.common.vec_env import VecEnv
from torch.optim import Optimizer

from sb3_ppo_variants import checks
from sb3_ppo_variants.arguments import (
    AUTO,
    NON_NEGATIVE,
    RULES,
    Rule,
    as_schedule,
    check_arguments,
    check_settings,
    choose_device,
    current_value,
    describe,
    explain_unknown,
    instance,
    is_schedule,
    warn_of_truncated_minibatch,
)
from sb3_ppo_variants.callbacks import Supervised, check_evaluations, own_callbacks
from sb3_ppo_variants.collector import Turn, begin_rollout, collect
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.engines.native.collector import fast_steps
from sb3_ppo_variants.envs import masks
from sb3_ppo_variants.errors import ArgumentError, refuse
from sb3_ppo_variants.limits import TOLERATED, ApproximateKL, EarlyStop, KLAdaptive
from sb3_ppo_variants.losses import ClippedError, SquaredError, ValueLoss, check_fixed
from sb3_ppo_variants.objectives import Objective
from sb3_ppo_variants.objectives.ewma import EWMA, ProximalPolicy
from sb3_ppo_variants.policies.kind import ALIASES, kind_of, make_policy_and_buffer, policy_of_thread
from sb3_ppo_variants.processes import SharedRollout, begin_together, check_same_weights, explained_variance
from sb3_ppo_variants.rollout import OldPolicy, advantages_follow_rewards, check_rollout
from sb3_ppo_variants.saving import SavedAlgorithm
from sb3_ppo_variants.saving.checkpoint import describe_arguments
from sb3_ppo_variants.separate import separate
from sb3_ppo_variants.snapshot import Snapshot
from sb3_ppo_variants.statistics import LOGGED, check_finite_parameters
from sb3_ppo_variants.update import (
    Descent,
    DescentResult,
    NormalizeAdvantage,
    Update,
    UpdatePlan,
    Updates,
    divide,
    set_step_size,
)

SelfPPO = TypeVar("SelfPPO", bound="PPOBase")
SB3S = inspect.signature(OnPolicyAlgorithm).parameters.keys()
"""The arguments of SB3's constructor."""
STEP_SIZE = NON_NEGATIVE.or_schedule()
LEARNING_RATE = Rule(
    "a finite number >= 0, a schedule, or KLAdaptive(...)",
    lambda value: isinstance(value, KLAdaptive) or STEP_SIZE.accepts(value),
    STEP_SIZE.of_schedule,
)
STAY_NUMBERS = {"learning_rate", "ent_coef", "vf_coef", "gae_lambda", "target_kl"}
"""Arguments that stay numbers as attributes, as in SB3, while those for which SB3 makes schedules become schedules."""


class PPOBase(SavedAlgorithm):
    """Proximal Policy Optimization without a policy objective, which subclasses define in :meth:`_objective`.

    The arguments are those of :class:`~sb3_ppo_variants.PPOClip`, which lists them all.
    """

    policy_aliases: ClassVar[Mapping[str, type[BasePolicy]]] = ALIASES  # type: ignore[assignment]
    rules: ClassVar[Mapping[str, Rule]] = {
        **RULES,
        "learning_rate": LEARNING_RATE,
        "stop": instance("ApproximateKL(...), ExactKL(...), RatioDeviation(...)", EarlyStop).or_none(),
        "value_loss": instance("SquaredError(), ClippedError(...), Huber(...), a ValueLoss", ValueLoss).or_none(),
        "fast": AUTO,
        "updates": instance("SeparateUpdates(...), a dict of its arguments", Updates, dict).or_none(),
        "data_parallel": AUTO,
    }
    """The allowed values of each argument. A subclass adds those of its own arguments, which become its attributes."""
    batch_size: int
    n_epochs: int
    clip_range_vf: float | Schedule | None
    normalize_advantage: NormalizeAdvantage
    target_kl: float | Schedule | None
    stop: EarlyStop | None
    value_loss: ValueLoss | None
    fast: bool | Literal["auto"]
    updates: Updates | None
    value_optimizer: Optimizer
    optional_states: ClassVar[Sequence[str]] = ("proximal_policy",)
    proximal_policy: ProximalPolicy | None = None
    """The policy to stay close to, if the objective is an :class:`~sb3_ppo_variants.objectives.EWMA`."""
    normalized: bool = False
    """Whether the policy was last trained on observations that ``VecNormalize`` normalised."""
    _division: Updates
    # What lr_schedule was made of, and the distributions of the last rollout.
    _scheduled: object
    old_policy: OldPolicy | None = None

    def __init__(self, **given: Any):
        """Check the arguments of a subclass's constructor, and pass them on or set them as attributes.

        :param given: all of them, by name
        """
        policy, policy_kwargs, verbose = given["policy"], given["policy_kwargs"], given["verbose"]
        begins = given["_init_setup_model"]  # If not, load() sets the attributes that a subclass adds later.
        if begins:
            check_arguments(given, self.rules)
        if isinstance(policy, str) and policy not in self.policy_aliases:
            refuse("policy", policy, f"{', '.join(self.policy_aliases)}, or a policy class")
        made = given | {
            "env": checks.checked_env(policy, policy_kwargs, given["env"], verbose, given["use_sde"], begins),
            "device": choose_device(given["device"], policy, policy_kwargs, verbose),
            **{name: int(given[name]) for name in ("n_steps", "batch_size", "n_epochs", "stats_window_size")},
            "_init_setup_model": False,
        }
        super().__init__(
            **{name: value for name, value in made.items() if name in SB3S},
            supported_action_spaces=checks.ACTION_SPACES,
        )
        for name, value in made.items():
            if name not in SB3S:
                setattr(self, name, value)
        if begins:
            self._setup_model()
            warn_of_truncated_minibatch(n_steps=self.n_steps, n_envs=self.n_envs, batch_size=self.batch_size)

    def _setup_model(self) -> None:
        # Check again, because load() sets attributes between construction and this call.
        check_settings(self.__dict__, self.rules)
        self.updates = separate(self.updates)
        schedules = {name for name, rule in self.rules.items() if rule.of_schedule and hasattr(self, name)}
        if callable(self.learning_rate):
            current_value("learning_rate", self.learning_rate, 1.0)
        make_policy_and_buffer(self)
        checks.check_normalization(self, self.env)
        self._division = divide(self.updates)
        self._division.prepare(self)
        for name in schedules - STAY_NUMBERS:
            if getattr(self, name) is not None:
                setattr(self, name, as_schedule(getattr(self, name)))
        plan = self._plan()
        if plan.needs_kl or isinstance(self.learning_rate, KLAdaptive):
            plan.kind.check_kl()  # If it is not known, fail before the first rollout.
        checks.check_objective(plan.objective, self.policy)
        if self.fast is True:
            choose(plan, fast=True)  # If it is impossible, fail before the first rollout.

    def _setup_lr_schedule(self) -> None:
        rate: Any = self.learning_rate
        if isinstance(rate, Real):
            self.learning_rate = rate = float(rate)  # SB3's PPO loads no file with a float32 of NumPy.
        self.lr_schedule = as_schedule(rate.learning_rate if isinstance(rate, KLAdaptive) else rate)
        self._scheduled = rate

    # The parts

    @abstractmethod
    def _objective(self) -> Objective:
        """Make the policy objective with the coefficients of the current update."""

    def _after_update(self, kl: float | None) -> None:
        """Keep the state that the objective has after an update, in the argument that it comes from.

        :param kl: the mean of KL(old || new) over the rollout; ``None`` if it is not known
        """

    def _early_stop(self, objective: Objective) -> EarlyStop | None:
        """Choose what ends the current update early: ``stop`` or ``target_kl``, or else what the objective says."""
        if self.stop is not None and self.target_kl is not None:
            raise ArgumentError(
                f"stop={self.stop} and target_kl={self.target_kl} both end updates early: pass one of them"
            )
        if self.target_kl is not None:
            return ApproximateKL(TOLERATED * self.current_argument("target_kl"))
        return objective.stop if self.stop is None else self.stop

    def _value_loss(self, objective: Objective) -> ValueLoss:
        """Choose the value loss of the current update."""
        if self.clip_range_vf is None:
            if self.value_loss is None:
                return SquaredError()
            check_fixed(self.value_loss)
            checks.check_coefficients(self.value_loss, LOGGED - {"clip_range_vf"} | objective.coefficients().keys())
            return self.value_loss
        clip_range_vf = self.current_argument("clip_range_vf")
        if self.value_loss is not None:
            raise ArgumentError(
                f"value_loss={self.value_loss} and clip_range_vf={clip_range_vf} are two value losses: pass one of them"
            )
        return ClippedError(clip_range_vf)

    def _plan(self, buffer: RolloutBuffer | None = None) -> UpdatePlan:
        """Plan the next update, or the update with a rollout.

        :param buffer: the rollout; ``None`` for the model's
        """
        check_settings(self.__dict__, self.rules)  # Callbacks may have set them.
        if self.learning_rate is not self._scheduled:
            self._setup_lr_schedule()
        self._division = divide(self.updates, self._division)
        buffer = self.rollout_buffer if buffer is None else buffer
        objective, normalize = self._objective(), self.normalize_advantage
        descents = self._division.descents(self, self._early_stop(objective))
        batch_size = int(min(self.batch_size, buffer.buffer_size * buffer.n_envs))
        proximal_decay = 0.0
        if not isinstance(objective, EWMA):
            self.proximal_policy = None
        else:
            minibatches = descents[0].epochs * ceil(buffer.buffer_size * buffer.n_envs / batch_size)
            proximal_decay = objective.decay_over(minibatches)
            self.proximal_policy = self.proximal_policy or ProximalPolicy(descents[0].parameters)
        return UpdatePlan(
            kind=kind_of(self.policy),
            buffer=buffer,
            objective=objective,
            ent_coef=self.current_argument("ent_coef"),
            vf_coef=self.current_argument("vf_coef"),
            value_loss=self._value_loss(objective),
            normalize_advantage=normalize if isinstance(normalize, str) else "minibatch" if normalize else None,
            batch_size=batch_size,
            descents=descents,
            processes=self.processes,
            proximal=self.proximal_policy,
            proximal_decay=proximal_decay,
            old_parameters=None if self.old_policy is None else self.old_policy.of(buffer),
        )

    def current_argument(self, name: str) -> float:
        """Evaluate an argument, a number or a schedule, in the current update.

        Until its first rollout begins, a schedule may read what does not exist yet, so that 1 stands for its value.

        :param name: name of the argument
        :raises ArgumentError: if a schedule returns a value that is not allowed
        """
        rule, value = self.rules[name], getattr(self, name)
        if is_schedule(value) and not self.run.has_begun:
            return 1.0
        return current_value(name, value, self._current_progress_remaining, rule.of_schedule or rule)

    def _settings(self) -> dict[str, str]:
        """Describe what all processes must have in common for the next update, by name."""
        plan = self._plan()
        of_update: dict[str, object] = {f"{name} of the update": value for name, value in plan.coefficients().items()}
        of_update |= {f"learning rate {i}": descent.learning_rate for i, descent in enumerate(plan.descents)}
        of_update |= {
            "path of the update": choose(plan, self.fast).engine.path,  # Each exchanges numbers in an order of its own.
            "algorithm": type(self).__name__,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "n_envs": self.n_envs,
            "shapes of the policy": {n: (*each.shape,) for n, each in plan.parameters.items() if each.requires_grad},
        }
        settings = describe_arguments(self) | {name: describe(value) for name, value in of_update.items()}
        del settings["seed"]
        return settings

    # The loop

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Fill the buffer with a rollout; see SB3.

        :return: False if a callback ended it early
        """
        if n_rollout_steps != rollout_buffer.buffer_size:
            raise ArgumentError(
                f"n_steps={n_rollout_steps} is not the length of the rollout buffer, which was created with n_steps="
                f"{rollout_buffer.buffer_size}. To change it, save the model and pass n_steps={n_rollout_steps} "
                "to load()"
            )
        processes = self.processes
        shared = SharedRollout(self, self.run.statistics, processes) if processes.size > 1 else None
        self.old_policy = None
        self.run.collecting = True  # Until it is complete: an error may cut it short.
        begin_rollout(self, env, callback, rollout_buffer, n_rollout_steps)
        self.run.has_begun = True
        plan = self._plan(rollout_buffer)
        if callable(self.gae_lambda):
            # SB3 does this after each rollout only, so another call of learn() would begin with the progress 0.
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        rollout_buffer.gamma, rollout_buffer.gae_lambda = self.gamma, self.current_argument("gae_lambda")
        engine = choose(plan, self.fast).engine
        collector = engine.collector(self, plan, rollout_buffer, n_rollout_steps)
        going = collect(self, fast_steps(env), callback, rollout_buffer, collector, plan.processes.size)
        if going:
            parameters = collector.old_parameters()
            self.old_policy = None if parameters is None else OldPolicy(parameters, rollout_buffer.rewards)
            with advantages_follow_rewards(rollout_buffer):
                callback.on_rollout_end()
        if shared is not None:
            if going:  # SB3 does the same after the rollout, but the schedules of the update are compared now.
                self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            going = shared.end(going, self._settings() if going else {})
        self.run.collecting = False
        self.run.iterations += going
        return going

    def train(self) -> None:
        """Update the policy with the rollout in the buffer. If the update fails, undo it."""
        self.run.has_begun = True
        plan = self._plan()
        check_rollout(self.rollout_buffer, self.num_timesteps, plan.processes.size)
        engine = choose(plan, self.fast).engine  # Again, because a callback may have changed the policy.
        self.run.untrained = checks.warn_of_untrained(plan, self.run.untrained)
        modules = [self.policy] if plan.proximal is None else [self.policy, plan.proximal]
        with Snapshot(self, modules, plan.optimizers) as snapshot:
            if plan.proximal is not None:
                plan.proximal.begin(plan.descents[0].parameters)
            self.policy.set_training_mode(True)
            results, kl = self._run(engine.update(plan), plan)
            for descent, result in zip(plan.descents, results, strict=True):
                set_step_size(descent.optimizer, result.learning_rate)
            values = self._values(plan, results, kl)
            if plan.processes.size > 1:
                check_same_weights(self.policy.parameters(), plan.processes)
            self._n_updates += results[0].epochs
            self._after_update(kl)
            if isinstance(rate := self.learning_rate, KLAdaptive):
                self.learning_rate = rate.after_update(results[0].learning_rate, kl)
            snapshot.kept = True
        for name, value in values.items():
            self.logger.record(f"train/{name}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _run(self, update: Update, plan: UpdatePlan) -> tuple[list[DescentResult], float | None]:
        """Run an update.

        :return: what each descent did, and the mean of KL(old || new) over the rollout, if it is known
        :raises NonFiniteError: if a loss, a gradient or a parameter is not finite
        """
        results = []
        for descent in plan.descents:
            try:
                result = update.descend(descent)
            except (ValueError, RuntimeError):
                # PyTorch raises an error for what follows from a non-finite step, but does not name the cause.
                update.statistics().check_finite()
                update.store()
                check_finite_parameters(self.policy)
                raise
            result.statistics.check_finite()
            if self.verbose >= 1 and plan.processes.rank == 0:
                _print_stop(descent, result)
            results.append(result)
        update.store()
        check_finite_parameters(self.policy)
        kl = update.kl()
        return results, None if kl is None else plan.processes.mean(kl)

    def _values(self, plan: UpdatePlan, results: Sequence[DescentResult], kl: float | None) -> dict[str, float]:
        """Collect the values that are logged after an update."""
        values = plan.coefficients() | self._division.log(results)
        for result in results:
            logged = result.statistics.over(plan.processes).logged()
            # That of separate descents is the sum of their losses.
            values |= logged | {"loss": values.get("loss", 0.0) + logged.get("loss", 0.0)}
        for name in ("ent_coef", "vf_coef", "target_kl"):
            if callable(getattr(self, name)):
                values[name] = self.current_argument(name)
        if callable(self.gae_lambda):
            values["gae_lambda"] = plan.buffer.gae_lambda
        if kl is not None:
            values["kl"] = max(kl, 0.0)  # Rounding takes that of an unchanged policy below 0.
        predicted, returns = plan.buffer.values.flatten(), plan.buffer.returns.flatten()
        values["explained_variance"] = explained_variance(predicted, returns, plan.processes)
        if getattr(self.policy, "log_std", None) is not None:
            values["std"] = th.exp(self.policy.log_std).mean().item()
        return values

    def _setup_learn(self, *args: Any, **arguments: Any) -> tuple[int, BaseCallback]:
        if self.env is not None:
            masks.check_env(self.env, type(self.policy).__name__, kind_of(self.policy).takes_masks)
        self.old_policy = None  # The path of the next rollout does not depend on the last one.
        plan = self._plan()  # If an attribute is wrong, fail before episodes begin.
        if self.verbose >= 1 and plan.processes.rank == 0:
            engine, why = choose(plan, self.fast)
            print(f"Training on the {engine.path} path: {why}")
        checks.check_normalization(self, self.env)
        self.normalized = getattr(self._vec_normalize_env, "norm_obs", False)
        before, begun = self._last_obs, super()._setup_learn(*args, **arguments)
        if self.env is not None and self._last_obs is not before:
            self.run.turn = Turn(self.env)
        return begun

    @explain_unknown
    def learn(
        self: SelfPPO, total_timesteps: float, callback: MaybeCallback = None, log_interval: int | None = 1,
        tb_log_name: str | None = None, reset_num_timesteps: bool = True, progress_bar: bool = False,
        *, use_masking: bool | None = None,
    ) -> SelfPPO:  # fmt: skip
        """Train the model, as in SB3, except that ``tb_log_name`` defaults to the name of the class.

        :param total_timesteps: number of environment steps, such as 1e6, rounded up to whole rollouts
        :param callback: callback or callbacks called at every step
        :param log_interval: number of updates between log outputs; ``None`` for no output
        :param tb_log_name: name of the run in TensorBoard
        :param reset_num_timesteps: whether to restart the count of steps
        :param progress_bar: whether to show a progress bar (needs tqdm and rich)
        :param use_masking: for scripts of sb3-contrib's ``MaskablePPO``: whether the policy must take masks
        :return: the model
        :raises ArgumentError: if an argument, or an attribute set after construction, has a value that is not allowed,
            the model has no environment, or a callback evaluates without the action masks or the memory of the policy
        :raises NonFiniteError: if an environment returns a number that is not finite, or an update computes one; the
            policy stays as the last good update left it
        :raises EnvOutputError: if an environment returns something with the wrong type, shape or range
        :raises WorkerError: if a worker of a ``SubprocVecEnv`` raises an error, ends or does not answer
        :raises CallbackError: if a callback returns None
        """
        processes = self.processes
        with checks.settings_kept():
            checks.check_learn(self.env, total_timesteps=total_timesteps, callback=callback, log_interval=log_interval)
            supervised = Supervised(own_callbacks(callback, processes), progress_bar and processes.rank == 0)
            check_evaluations(supervised, kind_of(self.policy))
            masks.check_use(use_masking, kind_of(self.policy).takes_masks, "use_masking")
            with checks.checked(self), supervised.to_the_end():
                if processes.size > 1:
                    same = {"total_timesteps": total_timesteps, "reset_num_timesteps": reset_num_timesteps}
                    same["num_timesteps"] = self.num_timesteps
                    settings = self._settings() | {name: repr(value) for name, value in same.items()}
                    begin_together(self, self.run.statistics, processes, settings)
                return super().learn(
                    total_timesteps=cast(int, total_timesteps),
                    callback=supervised,
                    log_interval=cast(int, self.run.begin(self, log_interval, reset_num_timesteps)),
                    tb_log_name=type(self).__name__ if tb_log_name is None else tb_log_name,
                    reset_num_timesteps=reset_num_timesteps,
                )

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_division", "_scheduled", "old_policy"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        states, tensors = super()._get_torch_save_params()
        proximal = [] if self.proximal_policy is None else ["proximal_policy"]
        return [*states, *self._division.optimizers, *proximal], tensors

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Choose actions with the policy for observations; see SB3.

        :param observation: one observation, or one per environment
        :param state: the last states of the LSTM, for a policy that has one
        :param episode_start: whether an episode begins with the observation, for a policy with an LSTM
        :param deterministic: whether to take the most probable actions
        :param action_masks: which actions are allowed, for a policy that takes masks
        :return: the actions, and the next states of the LSTM if there is one
        :raises ArgumentError: if masks are missing or do not fit, or the policy takes none, or if ``state`` or
            ``episode_start`` belong to another number of environments
        """
        checks.warn_of_prediction(self, state, episode_start)
        given = checks.check_prediction(self, observation, state, episode_start, action_masks)
        policy: Any = policy_of_thread(self.policy, self.run.learner)
        predicted: tuple[np.ndarray, tuple[np.ndarray, ...] | None] = policy.predict(
            observation, state, episode_start, deterministic, **given
        )
        return predicted


def _print_stop(descent: Descent, result: DescentResult) -> None:
    """Print a message if a descent ended early, as SB3 does."""
    if descent.stop is not None and result.stopped:
        ends_update = descent.stop.ends == "update"
        what = f"Early stopping at step {result.epochs - 1}" if ends_update else f"{result.stopped} epochs ended early"
        print(f"{what} due to reaching {descent.stop.reached}: {result.exceeded:.2f}")
