"""The reference engine: PyTorch, bit-identical to SB3 wherever SB3 computes the same."""

from collections.abc import Callable, Generator
from contextlib import closing
from copy import copy
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppo_variants import losses
from sb3_ppo_variants.collector import Observations, bounds_of, bring_into_bounds, resample_noise
from sb3_ppo_variants.envs.outputs import check_finite
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.generators import generators_kept
from sb3_ppo_variants.kl import Divergences, MissingKLError, Parameters, divergences_of
from sb3_ppo_variants.objectives import Batch
from sb3_ppo_variants.objectives.ewma import ProximalPolicy
from sb3_ppo_variants.objectives.objective import OF_DISTRIBUTIONS
from sb3_ppo_variants.policies.kind import Acted, Evaluated, PolicyKind
from sb3_ppo_variants.processes import normalize_together
from sb3_ppo_variants.rollout import Columns, Samples, draw_minibatches
from sb3_ppo_variants.statistics import MinibatchStatistics
from sb3_ppo_variants.update import Descent, DescentResult, UpdatePlan, rollout_normalizer, set_step_size

# The policy to which an objective compares the current one in a minibatch, pi_old or the pi_prox of an EWMA: its
# log-probabilities, and the parameters of its distributions, ``None`` if they are those of the rollout.
Compared: TypeAlias = tuple[th.Tensor, Parameters | None]


def parameters_in_rollout(kind: PolicyKind, buffer: RolloutBuffer) -> tuple[Divergences, Parameters]:
    """Compute the divergences and the current parameters of the policy's distributions in a rollout.

    A copy of the policy does, in evaluation mode, as in rollouts.
    """
    kind.check_kl()
    chunks, apart = [], kind.apart()
    apart.policy.set_training_mode(False)
    with th.no_grad(), generators_kept():
        for distribution in apart.distributions(buffer):
            divergences = divergences_of(distribution)
            chunks.append(divergences.parameters(distribution))
    return divergences, tuple(map(th.cat, zip(*chunks, strict=True)))


class TorchCollector:
    """Acts with a policy of any kind, on any device and with any rollout buffer.

    :param model: the model
    :param kind: evaluates the model's policy
    :param buffer: the buffer to fill
    """

    def __init__(self, model: OnPolicyAlgorithm, kind: PolicyKind, buffer: RolloutBuffer):
        self._model = model
        self._kind, self._policy = kind, model.policy
        self._acting = kind.acting(model)
        self._buffer = buffer
        self._bounds = bounds_of(kind.policy)
        # Allocated once, because many small tensors would pin the memory that is freed between them.
        self._parameters: Parameters | None = None
        self._step: int
        self._acted: Acted
        self._actions: np.ndarray
        self._seen: dict[str, object]

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
        check_finite(clipped_actions, "action")
        self._step, self._acted, self._actions = step, acted, actions
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
        now, rows = acted.parameters, (self._buffer.n_envs, self._buffer.buffer_size)
        if now is None or self._step == 0:
            self._parameters = now and tuple(each.new_empty((*rows, *each.shape[1:])) for each in now)
        for kept, each in zip(self._parameters or (), now or (), strict=False):
            kept[:, self._step] = each

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        self.read()
        with th.no_grad():
            values = self._acting.last_values(obs_as_tensor(observations, self._model.device), dones)
        with np.errstate(all="ignore"):
            self._buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        return values

    def old_parameters(self) -> Parameters | None:
        return None if self._parameters is None else tuple(each.flatten(0, 1) for each in self._parameters)


class TorchUpdate:
    """SB3's gradient steps on equation 9 of the paper, or on the terms of it that a descent has.

    Statistics stay on the device and are copied to the host together, because each copy would wait for the device.

    :param plan: the plan of the update
    :raises MissingKLError: if the objective needs a KL and the policy's distribution has no registered one
    """

    def __init__(self, plan: UpdatePlan):
        self._plan = plan
        self._distribution = copy(getattr(plan.kind.policy, "action_dist", None))
        self._old = self._old_parameters() if plan.old_parameters is None else plan.old_parameters
        self._normalize: Callable[[th.Tensor], th.Tensor] = lambda advantages: advantages
        if plan.normalize_advantage == "rollout":
            self._normalize = rollout_normalizer(plan.buffer.advantages, plan.processes)
        elif plan.normalize_advantage == "minibatch":
            together = partial(normalize_together, processes=plan.processes)
            self._normalize = together if plan.processes.size > 1 else losses.normalize_advantages

    @cached_property
    def _apart(self) -> PolicyKind:
        return self._plan.kind.apart()

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self._plan.buffer, self._old if self._plan.objective.needs_kl else None)

    def minibatches(self) -> Generator[Samples]:
        """Draw the minibatches of one epoch from the buffer."""
        with closing(draw_minibatches(self._plan.buffer, self._plan.batch_size)) as drawn:
            for read, rows in drawn:
                yield self._plan.kind.samples(read, rows)

    def _old_parameters(self) -> Parameters | None:
        """Compute the parameters of the policy that collected the rollout in another loop, if they are known."""
        try:
            return parameters_in_rollout(self._plan.kind, self._plan.buffer)[1]
        except MissingKLError:
            if self._plan.needs_kl:
                raise
            return None  # The KL is only logged.

    def descend(self, descent: Descent) -> DescentResult:
        self._descent = descent
        self._measured: dict[str, list[th.Tensor]] = {}
        stop, adaptive, rate = descent.stop, descent.adaptive, descent.learning_rate
        epochs, stopped, exceeded = 0, 0, 0.0
        set_step_size(descent.optimizer, rate)
        while epochs < descent.epochs:
            epochs += 1
            self._last_epoch = len(self._measured.get("loss", ()))
            with closing(self.minibatches()) as minibatches:
                for samples in minibatches:
                    loss = self.loss(samples)
                    if stop is not None and (latest := self._latest(stop.statistic)) > stop.limit:
                        stopped, exceeded = stopped + 1, latest
                        break
                    if adaptive is not None and len(self._measured["loss"]) > 1:  # In the first, the KL is 0.
                        rate = adaptive.adapted(rate, self._latest("kl"))
                        set_step_size(descent.optimizer, rate)
                    self.step(loss)
            if stopped and stop is not None and stop.ends == "update":
                break
        return DescentResult(epochs, rate, self.statistics(), stopped, exceeded)

    def _latest(self, statistic: str) -> float:
        """Return a statistic of the last minibatch, averaged over all processes."""
        return self._plan.processes.mean(float(self._measured[statistic][-1]))

    def loss(self, samples: Samples) -> th.Tensor:
        """Compute the loss of a minibatch."""
        kind, plan, descent = self._plan.kind, self._plan, self._descent
        terms: list[th.Tensor] = []
        if descent.of_policy:
            old: Compared = samples.old_log_prob, None
            if plan.proximal is not None:
                old = self._evaluate_proximal(plan.proximal, samples)
            evaluated = kind.evaluate(samples)
            terms.append(self._policy_loss(evaluated, samples, old))
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

    def _evaluate_proximal(self, proximal: ProximalPolicy, samples: Samples) -> Compared:
        """Evaluate the policy that an EWMA compares with, in the place of the policy of the rollout."""
        kind = self._apart
        with proximal.in_place_of(self._descent.parameters), th.no_grad(), generators_kept():
            log_prob = kind.evaluate(samples).log_prob
            parameters = kind.evaluated_parameters(samples)[1] if self._plan.objective.needs_kl else None
        return log_prob, parameters

    def _policy_loss(self, evaluated: Evaluated, samples: Samples, old: Compared) -> th.Tensor:
        plan, objective, stop = self._plan, self._plan.objective, self._descent.stop
        advantages = self._normalize(samples.advantages)
        log_ratio = to_old = evaluated.log_prob - samples.old_log_prob
        if plan.proximal is not None:
            log_ratio = evaluated.log_prob - old[0]
            advantages = advantages * th.exp(old[0] - samples.old_log_prob)
        ratio = th.exp(log_ratio)
        batch = Batch(ratio, advantages, log_ratio=log_ratio, source=partial(self._read, evaluated, samples, old))
        policy_loss = objective.loss(batch)
        losses.check_loss(policy_loss, objective, "policy", evaluated.log_prob.requires_grad)
        entropy_loss = losses.entropy_loss(evaluated.entropy, evaluated.log_prob)
        with th.no_grad():
            self._note(policy_loss=policy_loss, entropy_loss=entropy_loss, approx_kl=losses.approximate_kl(to_old))
            if objective.clip_range is not None:
                self._note(clip_fraction=losses.clip_fraction(ratio, objective.clip_range))
            if self._descent.needs_kl:
                self._note(kl=self._read_distributions(samples, None, "kl").mean())
            if stop is not None and stop.statistic == "ratio_deviation":
                self._note(ratio_deviation=losses.ratio_deviation(to_old))
        return policy_loss + plan.ent_coef * entropy_loss

    def _read(self, evaluated: Evaluated, samples: Samples, old: Compared, name: str) -> object:
        """Look up what an objective reads of a minibatch that the policy has just evaluated, ``None`` if unknown."""
        if name == "log_prob":
            return evaluated.log_prob
        if name == "old_log_prob":
            return old[0]
        if name == "entropy":
            return -evaluated.log_prob if evaluated.entropy is None else evaluated.entropy
        if name in OF_DISTRIBUTIONS:
            return self._read_distributions(samples, old[1], name) if self._plan.objective.needs_kl else None
        if samples.rows is None or (name == "over_rollout" and self._plan.proximal is not None):
            return None  # The policy that a minibatch is compared with is another one for each minibatch.
        return self._columns.read(name, samples.rows, self._plan.buffer.to_torch)

    def _read_distributions(self, samples: Samples, old: Parameters | None, name: str) -> Any:
        """Read what an objective reads of the old and the new distributions.

        :param old: the parameters of the old ones; ``None`` if they are those of the rollout
        :raises ArgumentError: if the minibatches of the rollout buffer lack the old parameters
        """
        if old is None:
            if self._old is None or samples.rows is None:
                raise ArgumentError(
                    "rollout_buffer_class: this buffer does not tell which rows its minibatches consist of, which the "
                    "KL needs. Its get() must make each minibatch with one call of _get_samples(), as in SB3"
                )
            rows = th.as_tensor(samples.rows, device=self._old[0].device)
            old = tuple(map(itemgetter(rows), self._old))
        divergences, new = self._plan.kind.evaluated_parameters(samples)
        return divergences.between(name, old, new)

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
        if self._plan.proximal is not None and self._descent.of_policy:
            self._plan.proximal.follow(self._descent.parameters, self._plan.proximal_decay)

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

    def statistics(self) -> MinibatchStatistics:
        if not self._measured:
            return MinibatchStatistics({})
        measured = self._measured.values()
        columns = th.cat([*map(th.stack, measured)]).cpu().numpy().astype(np.float64)
        ends = np.cumsum([*map(len, measured)])[:-1]
        values = dict(zip(self._measured, np.split(columns, ends), strict=True))
        return MinibatchStatistics(values, self._last_epoch)

    def store(self) -> None:
        """Leave no graph in the policy's distribution, with which it could not be copied."""
        if self._distribution is not None:
            attributes = vars(self._plan.kind.policy.action_dist)
            attributes.clear()
            attributes.update(vars(self._distribution))

    def kl(self) -> float | None:
        if self._old is None:
            return None
        divergences, new = parameters_in_rollout(self._plan.kind, self._plan.buffer)
        return divergences.kl(self._old, new).mean().item()
