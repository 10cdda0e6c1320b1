"""The reference backend: PyTorch, bit-identical to SB3 wherever SB3 computes the same."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
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
from sb3_ppo_variants.objectives import Batch
from sb3_ppo_variants.objectives.objective import OF_DISTRIBUTIONS
from sb3_ppo_variants.policies.kind import Acted, Evaluated, PolicyKind, without_traces
from sb3_ppo_variants.processes.statistics import normalize_together
from sb3_ppo_variants.rollouts.buffer import Columns, Samples, WithParameters
from sb3_ppo_variants.rollouts.loop import Actor, Observations, bounds_of, bring_into_bounds, resample_noise
from sb3_ppo_variants.updates.plan import Descent, Ended, UpdatePlan, rollout_normalizer
from sb3_ppo_variants.updates.proximal import ProximalPolicy
from sb3_ppo_variants.updates.run import Measured, Snapshot, check_finite_parameters


def parameters_in_rollout(kind: PolicyKind, distributions: Iterator[Distribution]) -> tuple[Divergences, Parameters]:
    """Compute the divergences and the current parameters of the policy's distributions, in evaluation mode.

    Rollouts use this mode too.

    :param distributions: at least one chunk; the iterator must compute chunks lazily, so that it runs in this mode
    """
    chunks = []
    training = kind.policy.training
    kind.policy.set_training_mode(False)
    try:
        with th.no_grad(), without_traces(kind.policy):
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
        self._kind, self._policy = kind, model.policy
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

    def read(self) -> None:
        """Act with the policy that the model has now, which a callback may have replaced."""
        if self._policy is not self._model.policy:
            self._policy = self._kind.policy = self._model.policy
            self._bounds = bounds_of(self._policy)

    def act(self, step: int, observations: Observations) -> np.ndarray:
        self.read()
        model, policy = self._model, self._policy
        resample_noise(model, policy, step, self._buffer.n_envs)
        obs_tensor = obs_as_tensor(observations, model.device)
        with th.no_grad():
            acted = self._acting.act(obs_tensor, np.asarray(model._last_episode_starts))
        actions = acted.actions.cpu().numpy()
        clipped_actions = bring_into_bounds(policy, self._bounds, actions)
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
        self.read()
        with th.no_grad():
            return self._acting.terminal_value(self._policy.obs_to_tensor(observation)[0], env_index)[0]

    def store(self, observations: Observations, rewards: np.ndarray, episode_starts: np.ndarray) -> None:
        actions, acted = self._actions, self._acted
        if isinstance(self._model.action_space, spaces.Discrete):
            actions = actions.reshape(-1, 1)
        self._buffer.add(observations, actions, rewards, episode_starts, acted.values, acted.log_probs, **acted.columns)
        self._parameters.append(acted.parameters)

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        self.read()
        with th.no_grad():
            values = self._acting.last_values(obs_as_tensor(observations, self._model.device), dones)
        self._buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        known = [parameters for parameters in self._parameters if parameters is not None]
        if isinstance(self._buffer, WithParameters) and len(known) == len(self._parameters):
            self._buffer.set_parameters(known)
        return values


class TorchUpdate:
    """SB3's gradient steps on equation 9 of the paper, or on the terms of it that a descent has.

    Statistics stay on the device and are copied to the host together, because each copy would wait for the device.

    :param plan: the plan of the update
    :raises MissingKLError: if the objective needs a KL and the policy's distribution has no registered one
    """

    def __init__(self, plan: UpdatePlan):
        self._plan = plan
        self._before = Snapshot(plan.kind.policy, *plan.optimizers, *([] if plan.proximal is None else [plan.proximal]))
        self._old = self._old_parameters()
        self._normalize: Callable[[th.Tensor], th.Tensor] = lambda advantages: advantages
        if plan.normalize_advantage == "rollout":
            self._normalize = rollout_normalizer(plan.buffer.advantages, plan.processes)
        elif plan.normalize_advantage == "minibatch":
            together = partial(normalize_together, processes=plan.processes)
            self._normalize = together if plan.processes.size > 1 else losses.normalize_advantages

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self._plan.buffer, self._old if self._plan.objective.needs_kl else None)

    def shuffled(self) -> Iterator[Samples]:
        """Draw the minibatches of one epoch from the buffer."""
        return map(self._plan.kind.samples, self._plan.buffer.get(self._plan.batch_size))

    def distributions(self) -> Iterator[Distribution]:
        """Compute the policy's distributions in all states of the rollout, in row order and in chunks."""
        return self._plan.kind.distributions(self._plan.buffer)

    def _old_parameters(self) -> Parameters | None:
        """Find the parameters of the policy that collected the rollout, or ``None`` if its KL is not known."""
        buffer = self._plan.buffer
        old = buffer.old_parameters if isinstance(buffer, WithParameters) else None
        if old is None:  # Another loop collected the rollout, or the KL is not known.
            try:
                _, old = parameters_in_rollout(self._plan.kind, self.distributions())
            except MissingKLError:
                if self._plan.needs_kl:
                    raise
                return None  # The KL is only logged.
            if isinstance(buffer, WithParameters):
                buffer.old_parameters = old
        return old

    def descend(self, descent: Descent) -> Ended:
        self._descent = descent
        self._measured: dict[str, list[th.Tensor]] = {}
        stop, adaptive, rate = descent.stop, descent.adaptive, descent.learning_rate
        epochs, early, statistic = 0, 0, 0.0
        update_learning_rate(descent.optimizer, rate)
        while epochs < descent.epochs:
            epochs += 1
            self._epoch_start = len(self._measured.get("loss", ()))
            for samples in self.shuffled():
                loss = self.loss(samples)
                if stop is not None and (latest := self._latest(stop.statistic)) > stop.limit:
                    early, statistic = early + 1, latest
                    break
                if adaptive is not None and len(self._measured["loss"]) > 1:  # In the first, the KL is 0.
                    rate = adaptive.adapted(rate, self._latest("kl"))
                    update_learning_rate(descent.optimizer, rate)
                self.step(loss)
            if early and stop is not None and stop.ends == "update":
                break
        return Ended(epochs, rate, early, statistic)

    def _latest(self, statistic: str) -> float:
        """Return a statistic of the last minibatch, averaged over all processes."""
        return self._plan.processes.mean(float(self._measured[statistic][-1]))

    def loss(self, samples: Samples) -> th.Tensor:
        """Compute the loss of a minibatch."""
        kind, plan, descent = self._plan.kind, self._plan, self._descent
        terms: list[th.Tensor] = []
        if descent.of_policy:
            proximal = samples if plan.proximal is None else self._as_if_from(plan.proximal, samples)
            evaluated = kind.evaluate(samples)
            terms.append(self._policy_loss(evaluated, samples, proximal))
            values = evaluated.values
        else:
            values = kind.evaluate_values(samples)
        if descent.of_value:
            value_loss = plan.value_loss.loss(values, samples.old_values, samples.returns)
            losses.check_loss(value_loss, plan.value_loss, "values", values.requires_grad)
            self._note(value_loss=value_loss)
            terms.append(plan.vf_coef * value_loss)
        loss = sum(terms[1:], start=terms[0])
        self._note(loss=loss)
        return loss

    def _as_if_from(self, proximal: ProximalPolicy, samples: Samples) -> Samples:
        """Return the samples as if the proximal policy had collected the rollout."""
        kind = self._plan.kind
        with proximal.in_place_of(self._descent.parameters), th.no_grad(), without_traces(kind.policy):
            log_prob = kind.evaluate(samples).log_prob
            parameters = kind.evaluated_parameters(samples)[1] if self._plan.objective.needs_kl else None
        return samples._replace(old_log_prob=log_prob, old_parameters=parameters)

    def _policy_loss(self, evaluated: Evaluated, samples: Samples, proximal: Samples) -> th.Tensor:
        plan, objective, stop = self._plan, self._plan.objective, self._descent.stop
        advantages = self._normalize(samples.advantages)
        log_ratio = to_old = evaluated.log_prob - samples.old_log_prob
        if proximal is not samples:
            log_ratio = evaluated.log_prob - proximal.old_log_prob
            advantages = advantages * th.exp(proximal.old_log_prob - samples.old_log_prob)
        ratio = th.exp(log_ratio)
        batch = Batch(ratio, advantages, log_ratio=log_ratio, source=partial(self._read, evaluated, proximal))
        policy_loss = objective.loss(batch)
        losses.check_loss(policy_loss, objective, "policy", evaluated.log_prob.requires_grad)
        entropy_loss = losses.entropy_loss(evaluated.entropy, evaluated.log_prob)
        with th.no_grad():
            self._note(policy_loss=policy_loss, entropy_loss=entropy_loss, approx_kl=losses.approximate_kl(to_old))
            if objective.clip_range is not None:
                self._note(clip_fraction=losses.clip_fraction(ratio, objective.clip_range))
            if self._descent.needs_kl:
                self._note(kl=self._read_distributions(samples, "kl").mean())
            if stop is not None and stop.statistic == "ratio_deviation":
                self._note(ratio_deviation=losses.ratio_deviation(to_old))
        return policy_loss + plan.ent_coef * entropy_loss

    def _read(self, evaluated: Evaluated, samples: Samples, name: str) -> object:
        """Look up what an objective reads of a minibatch that the policy has just evaluated, ``None`` if unknown."""
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
        """Read what an objective reads of the old and the new distributions.

        :raises ArgumentError: if the minibatches of the rollout buffer lack the old parameters
        """
        if samples.old_parameters is None:
            raise ArgumentError(
                "rollout_buffer_class: the minibatches of this buffer lack the parameters of the old policy, which the "
                "KL needs. Its get() must make each minibatch with one call of _get_samples(), which must return a "
                "named tuple, as in SB3"
            )
        divergences, new = self._plan.kind.evaluated_parameters(samples)
        return divergences.between(name, samples.old_parameters, new)

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
        """Average the gradient over the processes, as one vector, also of parameters that some of them do not use."""
        parameters = self._descent.parameters
        gradients = [th.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        is_used = gradients[0].new_tensor([each.grad is not None for each in parameters])
        vector = th.cat([*map(th.flatten, gradients), is_used])
        self._plan.processes.average(vector)
        *means, shares = th.split(vector, [*map(th.numel, gradients), len(parameters)])
        for parameter, gradient, mean, share in zip(parameters, gradients, means, shares.tolist(), strict=True):
            if share > 0:  # Optimizers skip parameters without a gradient.
                parameter.grad = gradient.copy_(mean.view_as(gradient))

    def measured(self) -> Measured:
        if not self._measured:
            return Measured({}, 0)
        names = list(self._measured)
        columns = th.cat([th.stack(self._measured[name]) for name in names]).cpu().numpy().astype(np.float64)
        ends = np.cumsum([len(self._measured[name]) for name in names])
        return Measured(dict(zip(names, np.split(columns, ends[:-1]), strict=True)), self._epoch_start)

    def check_finite(self) -> None:
        check_finite_parameters(self._plan.kind.policy)

    def undo(self) -> None:
        self._before.restore()

    def finish(self) -> float | None:
        if self._old is None:
            return None
        divergences, new = parameters_in_rollout(self._plan.kind, self.distributions())
        return divergences.kl(self._old, new).mean().item()


class Reference:
    """Computes everything with PyTorch, on any device and for any policy, buffer and objective."""

    name = "reference"
    path = "reference"
    how = "PyTorch computes everything"
    update: Callable[[UpdatePlan], TorchUpdate] = TorchUpdate

    def is_for(self, plan: UpdatePlan) -> bool:
        return True

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return None

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return TorchActor(model, plan.kind, buffer)
