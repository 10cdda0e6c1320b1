"""The reference backend: PyTorch, bit-identical to SB3 wherever SB3 computes the same."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor, update_learning_rate

from sb3_ppo_variants import losses
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.guards.outputs import Watch, check_actions
from sb3_ppo_variants.kl import Divergences, MissingKLError, Parameters, divergences_of
from sb3_ppo_variants.objectives import Batch, loss_of
from sb3_ppo_variants.objectives.objective import OF_DISTRIBUTIONS
from sb3_ppo_variants.policies.kind import Acted, Evaluated, PolicyKind
from sb3_ppo_variants.processes.statistics import normalize_together
from sb3_ppo_variants.rollouts.buffer import Columns, Samples, WithParameters
from sb3_ppo_variants.rollouts.loop import Actor, Observations, bounds_of
from sb3_ppo_variants.stops import EarlyStop
from sb3_ppo_variants.updates.plan import Descent, UpdatePlan, in_minibatches, rollout_normalizer
from sb3_ppo_variants.updates.run import Ended, Measured, Snapshot, check_parameters
from sb3_ppo_variants.value_losses import value_loss_of


def parameters_in_rollout(kind: PolicyKind, distributions: Iterator[Distribution]) -> tuple[Divergences, Parameters]:
    """Return the divergences and the current parameters of the policy's distributions, in evaluation mode.

    Rollouts use this mode too.

    :param distributions: at least one chunk; the iterator must compute chunks lazily, so that it runs in this mode
    """
    chunks = []
    training = kind.policy.training
    kind.policy.set_training_mode(False)
    try:
        with th.no_grad():
            for distribution in distributions:
                divergences = divergences_of(distribution)
                chunks.append(divergences.parameters(distribution))
        return divergences, tuple(map(th.cat, zip(*chunks, strict=True)))
    finally:
        kind.policy.set_training_mode(training)


class TorchActor:
    """Acts with a policy of any kind, on any device and with any rollout buffer.

    :param model: the model
    :param kind: evaluates the model's policy
    :param buffer: the buffer to fill
    :param drawn_from: the parameters of the distributions of the steps that the buffer has already
    """

    def __init__(
        self,
        model: OnPolicyAlgorithm,
        kind: PolicyKind,
        buffer: RolloutBuffer,
        drawn_from: Sequence[Parameters | None] = (),
    ):
        self._model = model
        self._policy = kind.policy
        self._acting = kind.acting(model)
        self._buffer = buffer
        self._bounds = bounds_of(kind.policy)
        self._watch = Watch(model)
        self._parameters = [*drawn_from]
        self._acted: Acted
        self._actions: np.ndarray
        self._seen: dict[str, object]

    def drawn_from(self) -> Sequence[Parameters | None]:
        """Return the parameters of the distributions of each step that was stored; ``None`` where they are unknown."""
        return self._parameters

    def act(self, step: int, observations: Observations) -> np.ndarray:
        model, policy = self._model, self._policy
        if model.use_sde and model.sde_sample_freq > 0 and step % model.sde_sample_freq == 0:
            policy.reset_noise(self._buffer.n_envs)
        obs_tensor = obs_as_tensor(observations, model.device)
        with th.no_grad():
            acted = self._acting.act(obs_tensor, np.asarray(model._last_episode_starts))
        actions = acted.actions.cpu().numpy()
        clipped_actions = actions
        if policy.squash_output:
            clipped_actions = policy.unscale_action(actions)
        elif self._bounds is not None:
            clipped_actions = np.clip(actions, *self._bounds)
        check_actions(clipped_actions, self._watch)
        self._acted, self._actions = acted, actions
        self._seen = {
            "obs_tensor": obs_tensor,
            "actions": actions,
            "values": acted.values,
            "log_probs": acted.log_probs,
            **acted.seen,
        }
        return clipped_actions

    def seen(self) -> dict[str, object]:
        return self._seen

    def terminal_value(self, observation: Observations, env_index: int) -> th.Tensor:
        with th.no_grad():
            return self._acting.terminal_value(self._policy.obs_to_tensor(observation)[0], env_index)[0]

    def store(self, observations: Observations, rewards: np.ndarray, episode_starts: np.ndarray) -> None:
        actions, acted = self._actions, self._acted
        if isinstance(self._model.action_space, spaces.Discrete):
            actions = actions.reshape(-1, 1)
        self._buffer.add(observations, actions, rewards, episode_starts, acted.values, acted.log_probs, **acted.columns)
        self._parameters.append(acted.parameters)

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        with th.no_grad():
            values = self._acting.last_values(obs_as_tensor(observations, self._model.device), dones)
        self._buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        known = [parameters for parameters in self._parameters if parameters is not None]
        if isinstance(self._buffer, WithParameters) and len(known) == len(self._parameters):
            self._buffer.set_parameters(known)
        return values


class Minibatches:
    """Reads a rollout through the minibatches that its buffer returns, whether the buffer is SB3's or a user's.

    :param plan: the plan of the update, with a full buffer
    """

    def __init__(self, plan: UpdatePlan):
        self._buffer, self._kind = plan.buffer, plan.kind
        self._batch_size = plan.batch_size

    def shuffled(self) -> Iterator[Samples]:
        """Return the minibatches of one epoch, in a new random order."""
        return map(self._kind.samples, self._buffer.get(self._batch_size))

    def distributions(self) -> Iterator[Distribution]:
        """Return the policy's distributions in all states of the rollout, in row order and in chunks."""
        return self._kind.distributions(self._buffer)


class TorchUpdate:
    """Updates the policy's tensors in place.

    :param plan: the plan of the update
    :param minibatches: reads the rollout
    :raises MissingKLError: if the objective needs a KL and the policy's distribution has no registered one
    """

    def __init__(self, plan: UpdatePlan, minibatches: Minibatches):
        self.plan, self.minibatches = plan, minibatches
        self.normalize = rollout_normalizer(plan.buffer.advantages, plan.normalize_advantage, plan.processes)
        self._before = Snapshot(plan.kind.policy, plan.optimizers, plan.proximal)
        self._old = self._old_parameters()
        self.columns = Columns(plan.buffer, self._old if plan.objective.needs_kl else None)

    def _old_parameters(self) -> Parameters | None:
        """Return the parameters of the policy that collected the rollout, or ``None`` if its KL is not known."""
        buffer = self.plan.buffer
        old = buffer.old_parameters if isinstance(buffer, WithParameters) else None
        if old is None:  # Another loop collected the rollout, or the KL is not known.
            try:
                _, old = parameters_in_rollout(self.plan.kind, self.minibatches.distributions())
            except MissingKLError:
                if self.plan.needs_kl:
                    raise
                return None  # The KL is only logged.
            if isinstance(buffer, WithParameters):
                buffer.old_parameters = old
        return old

    def begin(self, descent: Descent) -> "TorchDescent":
        return TorchDescent(self, descent)

    def check_finite(self) -> None:
        check_parameters(self.plan.kind.policy)

    def undo(self) -> None:
        self._before.restore()

    def finish(self) -> float | None:
        if self._old is None:
            return None
        divergences, new = parameters_in_rollout(self.plan.kind, self.minibatches.distributions())
        return divergences.kl(self._old, new).mean().item()


class TorchDescent:
    """The reference descent: SB3's gradient steps on equation 9 of the paper, or on the descent's terms of it.

    Statistics stay on the device and are copied to the host together, because each copy would wait for the device.

    :param update: the update that it belongs to
    :param descent: what it minimises, and how
    """

    def __init__(self, update: TorchUpdate, descent: Descent):
        self._plan, self._minibatches, self._normalize = update.plan, update.minibatches, update.normalize
        self._descent, self._columns = descent, update.columns
        self._measured: dict[str, list[th.Tensor]] = {}
        self._epoch_start = 0
        self._learning_rate = descent.learning_rate

    def descend(self) -> Ended:
        stop, epochs, exceeding = self._descent.stop, 0, list[float]()
        while epochs < self._descent.epochs and not (exceeding and stop is not None and stop.ends == "update"):
            epochs += 1
            exceeding += self._descend_once(stop)
        return Ended(epochs, self._learning_rate, len(exceeding), *exceeding[-1:])

    def _descend_once(self, stop: EarlyStop | None) -> list[float]:
        """Make a pass over the rollout, and return the statistic that ended it early, if one did."""
        self._epoch_start = len(self._measured.get("loss", ()))
        for samples in self._minibatches.shuffled():
            loss = self.loss(samples)
            if stop is not None and (statistic := self._latest(stop.statistic)) > stop.limit:
                return [statistic]
            self._adapt()
            self.step(loss)
        return []

    def _latest(self, statistic: str) -> float:
        """Return a statistic of the current minibatch, averaged over the processes."""
        return self._plan.processes.mean(float(self._measured[statistic][-1]))

    def _adapt(self) -> None:
        """Adapt the step size to the KL of the current minibatch, unless it is the first."""
        adaptive = self._descent.adaptive
        if adaptive is None or not adaptive.in_minibatches or len(self._measured["loss"]) == 1:
            return
        self._learning_rate = adaptive.adapted(self._learning_rate, self._latest("kl"))
        update_learning_rate(self._descent.optimizer, self._learning_rate)

    def loss(self, samples: Samples) -> th.Tensor:
        """Compute the loss of a minibatch."""
        kind, plan = self._plan.kind, self._plan
        if not self._descent.of_policy:
            loss = plan.vf_coef * self._value_loss(kind.evaluate_values(samples), samples)
        else:
            proximal = self._proximal_samples(samples)
            evaluated = kind.evaluate(samples)
            loss = self._policy_loss(evaluated, samples, proximal)
            self._note_distance(evaluated, samples)
            if self._descent.of_value:
                loss = loss + plan.vf_coef * self._value_loss(evaluated.values, samples)
        self._note(loss=loss)
        return loss

    def _proximal_samples(self, samples: Samples) -> Samples:
        """Return the samples as if the proximal policy had collected the rollout."""
        proximal, kind = self._plan.proximal, self._plan.kind
        if proximal is None:
            return samples
        with proximal.in_place_of(self._descent.parameters), th.no_grad():
            log_prob = kind.evaluate(samples).log_prob
            parameters = kind.evaluated_parameters(samples)[1] if self._plan.objective.needs_kl else None
        return samples._replace(old_log_prob=log_prob, old_parameters=parameters)

    def _policy_loss(self, evaluated: Evaluated, samples: Samples, proximal: Samples) -> th.Tensor:
        plan, objective = self._plan, self._plan.objective
        advantages = self._normalized(self._normalize(samples.advantages))
        log_ratio = to_old = evaluated.log_prob - samples.old_log_prob
        if proximal is not samples:
            log_ratio = evaluated.log_prob - proximal.old_log_prob
            advantages = advantages * th.exp(proximal.old_log_prob - samples.old_log_prob)
        ratio = th.exp(log_ratio)
        batch = Batch(ratio, advantages, log_ratio=log_ratio, source=partial(self._read, evaluated, proximal))
        policy_loss = loss_of(objective, batch)
        entropy_loss = losses.entropy_loss(evaluated.entropy, evaluated.log_prob)
        with th.no_grad():
            self._note(policy_loss=policy_loss, entropy_loss=entropy_loss, approx_kl=losses.approximate_kl(to_old))
            if objective.clip_range is not None:
                self._note(clip_fraction=losses.clip_fraction(ratio, objective.clip_range))
        return policy_loss + plan.ent_coef * entropy_loss

    def _note_distance(self, evaluated: Evaluated, samples: Samples) -> None:
        """Note how far the policy has moved, as far as the descent depends on it."""
        stop = self._descent.stop
        with th.no_grad():
            if self._descent.needs_kl:
                self._note(kl=self._read_distributions(samples, "kl").mean())
            if stop is not None and stop.statistic == "ratio_deviation":
                self._note(ratio_deviation=losses.ratio_deviation(evaluated.log_prob - samples.old_log_prob))

    def _read(self, evaluated: Evaluated, samples: Samples, name: str) -> Any:
        """Return what an objective reads of a minibatch that the policy has just evaluated, ``None`` if unknown."""
        if name == "log_prob":
            return evaluated.log_prob
        if name == "old_log_prob":
            return samples.old_log_prob
        if name == "entropy":
            return -evaluated.log_prob if evaluated.entropy is None else evaluated.entropy
        if name in OF_DISTRIBUTIONS:
            return self._read_distributions(samples, name) if self._plan.objective.needs_kl else None
        if samples.rows is None or (name == "over_rollout" and self._plan.proximal is not None):
            return None  # The policy that a minibatch is compared with is another one for each minibatch.
        return self._columns.read(name, samples.rows, self._plan.buffer.to_torch)

    def _read_distributions(self, samples: Samples, name: str) -> Any:
        """Return what an objective reads of the old and the new distributions.

        :raises ArgumentError: if the minibatches of the rollout buffer lack the old parameters
        """
        if samples.old_parameters is None:
            raise ArgumentError(
                "rollout_buffer_class: this buffer's minibatches come without the parameters of the old policy, which "
                "its KL needs. Make each minibatch of its get() by one call of _get_samples(), and let that "
                "return a named tuple, as SB3's does"
            )
        divergences, new = self._plan.kind.evaluated_parameters(samples)
        return divergences.between(name, samples.old_parameters, new)

    def _normalized(self, advantages: th.Tensor) -> th.Tensor:
        if not in_minibatches(self._plan.normalize_advantage):
            return advantages
        processes = self._plan.processes
        if processes.size > 1:
            return normalize_together(advantages, processes)
        return losses.normalize_advantages(advantages)

    def _value_loss(self, values: th.Tensor, samples: Samples) -> th.Tensor:
        value_loss = value_loss_of(self._plan.value_loss, values, samples.old_values, samples.returns)
        self._note(value_loss=value_loss)
        return value_loss

    def _note(self, **scalars: th.Tensor) -> None:
        for name, scalar in scalars.items():
            self._measured.setdefault(name, []).append(scalar.detach())

    def step(self, loss: th.Tensor) -> None:
        """Take a step down the gradient of a loss."""
        optimizer, processes = self._descent.optimizer, self._plan.processes
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if processes.size > 1:
            self._average_gradient()
        self._note(gradient=th.nn.utils.clip_grad_norm_(self._descent.parameters, self._descent.max_grad_norm))
        optimizer.step()
        decay, proximal = self._plan.objective.proximal_decay, self._plan.proximal
        if proximal is not None and decay is not None and self._descent.of_policy:
            proximal.follow(self._descent.parameters, decay)

    def _average_gradient(self) -> None:
        """Average the gradient over the processes, as one vector."""
        gradients = [parameter.grad for parameter in self._descent.parameters if parameter.grad is not None]
        vector = th.cat([gradient.flatten() for gradient in gradients])
        self._plan.processes.average(vector)
        for gradient, mean in zip(gradients, th.split(vector, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def measured(self) -> Measured:
        if not self._measured:
            return Measured({}, 0)
        names = list(self._measured)
        columns = th.cat([th.stack(self._measured[name]) for name in names]).cpu().numpy().astype(np.float64)
        ends = np.cumsum([len(self._measured[name]) for name in names])
        return Measured(dict(zip(names, np.split(columns, ends[:-1]), strict=True)), self._epoch_start)


class Reference:
    """Computes everything with PyTorch, on any device and for any policy, buffer and objective."""

    name = "reference"
    path = "reference"
    has_memory = False
    how = "PyTorch computes everything"

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return None

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return TorchActor(model, plan.kind, buffer)

    def update(self, plan: UpdatePlan) -> TorchUpdate:
        return TorchUpdate(plan, Minibatches(plan))
