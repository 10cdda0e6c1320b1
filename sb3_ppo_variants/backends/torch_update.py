"""Updates with PyTorch."""

from collections.abc import Callable, Iterator

import numpy as np
import torch as th
from stable_baselines3.common.distributions import Distribution

from sb3_ppo_variants import losses
from sb3_ppo_variants.backends.rollout_kl import RolloutKL
from sb3_ppo_variants.objectives import Batch, loss_of
from sb3_ppo_variants.policies.kind import Evaluated
from sb3_ppo_variants.processes.advantages import normalized_together
from sb3_ppo_variants.rollouts.buffer import Samples
from sb3_ppo_variants.updates.advantages import in_minibatches, over_rollout
from sb3_ppo_variants.updates.finite import Snapshot, check_parameters
from sb3_ppo_variants.updates.measured import Measured
from sb3_ppo_variants.updates.plan import Descent, UpdatePlan
from sb3_ppo_variants.updates.run import Ended, in_steps


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

    :param read: creates the reader of the rollout
    :param plan: the plan of the update
    :raises MissingKLError: if the objective needs a KL and the policy's distribution has no registered one
    """

    def __init__(self, read: Callable[[UpdatePlan], Minibatches], plan: UpdatePlan):
        self._plan = plan
        self._minibatches = read(plan)
        self._before = Snapshot(plan.kind.policy, plan.optimizers)
        self._kl = RolloutKL.of(plan, self._minibatches.distributions)
        self._normalize = over_rollout(plan.buffer.advantages, plan.normalize_advantage, plan.processes)

    def begin(self, descent: Descent) -> "TorchDescent":
        return TorchDescent(self._plan, descent, self._minibatches, self._kl, self._normalize)

    def check_finite(self) -> None:
        check_parameters(self._plan.kind.policy)

    def undo(self) -> None:
        self._before.restore()

    def finish(self) -> float | None:
        return None if self._kl is None else self._kl.of_rollout()


class TorchDescent:
    """The reference descent: SB3's gradient steps on equation 9 of the paper, or on the descent's terms of it.

    Statistics stay on the device and are copied to the host together, because each copy would wait for the device.
    """

    def __init__(
        self,
        plan: UpdatePlan,
        descent: Descent,
        minibatches: Minibatches,
        kl: RolloutKL | None,
        normalize: Callable[[th.Tensor], th.Tensor],
    ):
        self._plan = plan
        self._descent = descent
        self._minibatches = minibatches
        self._kl = kl
        self._normalize = normalize
        self._measured: dict[str, list[th.Tensor]] = {}
        self._epoch_start = 0
        self._loss: th.Tensor

    def descend(self) -> Ended:
        return in_steps(self, self._descent, self._plan.processes)

    def minibatches(self) -> Iterator[Samples]:
        self._epoch_start = len(self._measured.get("loss", ()))
        return self._minibatches.shuffled()

    def loss(self, samples: Samples) -> None:
        kind, plan = self._plan.kind, self._plan
        if not self._descent.of_policy:
            self._loss = plan.vf_coef * self._value_loss(kind.evaluate_values(samples), samples)
        else:
            evaluated = kind.evaluate(samples)
            self._loss = self._policy_loss(evaluated, samples)
            if self._descent.of_value:
                self._loss = self._loss + plan.vf_coef * self._value_loss(evaluated.values, samples)
        self._note(loss=self._loss)

    def _policy_loss(self, evaluated: Evaluated, samples: Samples) -> th.Tensor:
        plan, objective = self._plan, self._plan.objective
        advantages = self._normalize(samples.advantages)
        if in_minibatches(plan.normalize_advantage):
            advantages = self._normalized(advantages)
        log_ratio = evaluated.log_prob - samples.old_log_prob
        ratio = th.exp(log_ratio)
        kl = self._kl.of_minibatch(samples) if self._kl is not None and objective.needs_kl else None
        policy_loss = loss_of(objective, Batch(ratio, advantages, kl))
        entropy_loss = losses.entropy_loss(evaluated.entropy, evaluated.log_prob)
        with th.no_grad():
            self._note(policy_loss=policy_loss, entropy_loss=entropy_loss, approx_kl=losses.approximate_kl(log_ratio))
            if objective.clip_range is not None:
                self._note(clip_fraction=losses.clip_fraction(ratio, objective.clip_range))
        return policy_loss + plan.ent_coef * entropy_loss

    def _normalized(self, advantages: th.Tensor) -> th.Tensor:
        processes = self._plan.processes
        if processes.size > 1:
            return normalized_together(advantages, processes)
        return losses.normalize_advantages(advantages)

    def _value_loss(self, values: th.Tensor, samples: Samples) -> th.Tensor:
        value_loss = losses.value_loss(values, samples.old_values, samples.returns, self._plan.clip_range_vf)
        self._note(value_loss=value_loss)
        return value_loss

    def _note(self, **scalars: th.Tensor) -> None:
        for name, scalar in scalars.items():
            self._measured.setdefault(name, []).append(scalar.detach())

    def approximate_kl(self) -> float:
        return float(self._measured["approx_kl"][-1])

    def step(self) -> None:
        optimizer = self._descent.optimizer
        optimizer.zero_grad()
        self._loss.backward()
        self._average_gradient()
        self._note(gradient=th.nn.utils.clip_grad_norm_(self._descent.parameters, self._descent.max_grad_norm))
        optimizer.step()

    def _average_gradient(self) -> None:
        """Average the gradient over the processes, as one vector."""
        processes = self._plan.processes
        if processes.size > 1:
            gradients = [parameter.grad for parameter in self._descent.parameters if parameter.grad is not None]
            vector = th.cat([gradient.flatten() for gradient in gradients])
            processes.average(vector)
            for gradient, mean in zip(gradients, vector.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(mean.view_as(gradient))

    def measured(self) -> Measured:
        if not self._measured:
            return Measured({}, 0)
        names = list(self._measured)
        columns = th.cat([th.stack(self._measured[name]) for name in names]).cpu().numpy().astype(np.float64)
        ends = np.cumsum([len(self._measured[name]) for name in names])
        return Measured(dict(zip(names, np.split(columns, ends[:-1]), strict=True)), self._epoch_start)
