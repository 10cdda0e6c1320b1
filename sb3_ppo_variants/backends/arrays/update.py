"""Updates over arrays."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants import losses
from sb3_ppo_variants.backends.arrays.adam import clip_norm
from sb3_ppo_variants.backends.arrays.distribution import Distribution, Index
from sb3_ppo_variants.backends.arrays.features import Features
from sb3_ppo_variants.backends.arrays.masks import masked_gradient
from sb3_ppo_variants.backends.arrays.measurements import Measurements
from sb3_ppo_variants.backends.arrays.networks import MakeNetworks
from sb3_ppo_variants.backends.arrays.parameters import Moments, gradients
from sb3_ppo_variants.backends.arrays.trained import TrainedNetworks
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.guards.finite import is_finite
from sb3_ppo_variants.objectives import ArrayObjective, Batch, gradient_of
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.processes.advantages import normalized_together
from sb3_ppo_variants.rollouts.buffer import WithParameters, in_rows
from sb3_ppo_variants.updates.advantages import in_minibatches, over_rollout
from sb3_ppo_variants.updates.measured import Measured
from sb3_ppo_variants.updates.plan import Descent, UpdatePlan
from sb3_ppo_variants.updates.run import Descending, Ended, in_steps


class Rows(NamedTuple):
    """Rows of a rollout."""

    features: np.ndarray
    actions: np.ndarray
    old_log_prob: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    old_values: np.ndarray
    masks: np.ndarray | None = None
    """Action masks, if the policy uses them."""
    old: Distribution | None = None
    """The distributions that the actions were drawn from, if the objective needs the KL."""

    def take(self, rows: Index) -> "Rows":
        """Return some of the rows."""
        masks = None if self.masks is None else self.masks[rows]
        old = None if self.old is None else self.old.take(rows)
        return Rows._make([*(array[rows] for array in self[:-2]), masks, old])


def read(buffer: RolloutBuffer, policy: ActorCriticPolicy, dtype: np.dtype, action_dtype: np.dtype) -> Rows:
    """Return a rollout in the row order of its buffer."""

    def rows(array: np.ndarray) -> np.ndarray:
        return in_rows(buffer, array)

    def numbers(array: np.ndarray) -> np.ndarray:
        return rows(array).ravel().astype(dtype, copy=False)

    masks: np.ndarray | None = getattr(buffer, "action_masks", None)
    observations: Any = buffer.observations
    if isinstance(observations, dict):
        observations = {key: rows(array) for key, array in observations.items()}
    else:
        observations = rows(observations)
    return Rows(
        features=Features(policy, dtype)(observations),
        actions=rows(buffer.actions).astype(action_dtype, copy=False),
        old_log_prob=numbers(buffer.log_probs),
        advantages=numbers(buffer.advantages),
        returns=numbers(buffer.returns),
        old_values=numbers(buffer.values),
        masks=None if masks is None else rows(masks).astype(bool),
    )


class Part:
    """The parameters that a descent trains, with their gradient and Adam.

    :param networks: the networks that contain the parameters
    :param descent: the descent
    """

    def __init__(self, networks: TrainedNetworks, descent: Descent):
        where, self._layout = networks.layout.part(descent.parameters)
        self._optimizer = descent.optimizer
        self.vector, self.gradient = networks.vector[where], networks.gradient[where]
        self._before = Moments.of(self._optimizer, self._layout)
        self.adam = self._before.adam(self._optimizer)

    def store_optimizer(self) -> None:
        """Leave the gradients and the torch optimizer as if it had made the steps itself, if there were any."""
        if self.adam.steps > self._before.steps[0]:
            self._layout.scatter(self.gradient, gradients(self._layout.parameters))
            Moments.after(self.adam, self._layout).write(self._optimizer, self._layout)

    def restore_optimizer(self) -> None:
        """Restore the torch optimizer to its state before the descent."""
        self._before.write(self._optimizer, self._layout)


MakeDescent = Callable[[UpdatePlan, Descent, TrainedNetworks, Rows, Part], Descending]


class ArrayUpdate:
    """Updates as :class:`sb3_ppo_variants.backends.torch_update.TorchUpdate` does, without a computation graph.

    The constructor reads the policy, and :meth:`begin` the descent's optimizer. :meth:`finish` writes all of them back.

    :param make_networks: creates the networks
    :param make_descent: creates a descent
    :param plan: the plan of the update
    """

    def __init__(self, make_networks: MakeNetworks, make_descent: MakeDescent, plan: UpdatePlan):
        self._plan = plan
        self._make_descent = make_descent
        policy, buffer = plan.kind.policy, plan.buffer
        self._networks = TrainedNetworks(plan, make_networks)
        self._rollout = read(buffer, policy, self._networks.vector.dtype, self._networks.action_dtype)
        normalize = over_rollout(buffer.advantages, plan.normalize_advantage, plan.processes)
        self._rollout = self._rollout._replace(advantages=normalize(self._rollout.advantages))
        self._old = self._old_distribution(buffer)
        if plan.objective.needs_kl:
            self._rollout = self._rollout._replace(old=self._old)
        self._parts: list[Part] = []
        self._before, self._written = self._networks.vector.copy(), False

    def _old_distribution(self, buffer: RolloutBuffer) -> Distribution:
        networks = self._networks
        old = buffer.old_parameters if isinstance(buffer, WithParameters) else None
        if old is None:  # Another loop collected the rollout.
            return networks.distribution_of(self._rollout.features, self._rollout.masks)
        return networks.architecture.kind.of_parameters(*(p.numpy().astype(networks.vector.dtype) for p in old))

    def begin(self, descent: Descent) -> Descending:
        self._parts.append(Part(self._networks, descent))
        return self._make_descent(self._plan, descent, self._networks, self._rollout, self._parts[-1])

    def check_finite(self) -> None:
        if not is_finite(self._networks.vector):
            raise NonFiniteError("vector of all parameters", "not finite")

    def undo(self) -> None:
        if self._written:
            layout = self._networks.layout
            layout.scatter(self._before, layout.parameters)
            for part in self._parts:
                part.restore_optimizer()

    def finish(self) -> float:
        """Write back the policy, the gradients of the last steps and the optimizers.

        :return: the mean of KL(old || new) over the rollout
        """
        networks = self._networks
        new = networks.distribution_of(self._rollout.features, self._rollout.masks)
        kl = float(np.mean(new.kl_from(self._old), dtype=np.float64))
        self._written = True
        networks.layout.scatter(networks.vector, networks.layout.parameters)
        for part in self._parts:
            part.store_optimizer()
        return kl


class ArrayDescent:
    """The steps of :class:`sb3_ppo_variants.backends.torch_update.TorchDescent` over arrays."""

    def __init__(self, plan: UpdatePlan, descent: Descent, networks: TrainedNetworks, rollout: Rows, part: Part):
        assert isinstance(plan.objective, ArrayObjective)
        self._objective = plan.objective
        self._plan = plan
        self._descent = descent
        self._networks = networks
        self._rollout = rollout
        self._part = part
        self._measurements = Measurements(plan)
        self._gradients: tuple[tuple[np.ndarray, ...] | None, np.ndarray | None]
        # Plain floats, because NumPy scalars would promote single-precision arrays to double precision.
        self._ent_coef, self._vf_coef = float(plan.ent_coef), float(plan.vf_coef)

    def descend(self) -> Ended:
        return in_steps(self, self._descent, self._plan.processes)

    def minibatches(self) -> Iterator[Rows]:
        self._measurements.start_epoch()
        size = self._plan.batch_size
        shuffled = self._rollout.take(np.random.permutation(len(self._rollout.features)))
        if in_minibatches(self._plan.normalize_advantage):
            shuffled = shuffled._replace(advantages=normalized(shuffled.advantages, size, self._plan.processes))
        for start in range(0, len(shuffled.features), size):
            yield shuffled.take(slice(start, start + size))

    def loss(self, minibatch: Rows) -> None:
        of_policy, of_value = self._descent.of_policy, self._descent.of_value
        self._networks.forward(minibatch.features, of_policy, of_value)
        samples: dict[str, np.ndarray] = {}
        d_distribution = self._policy_gradient(minibatch, samples) if of_policy else None
        d_values = self._value_gradient(minibatch, samples) if of_value else None
        self._measurements.add(samples)
        self._gradients = d_distribution, d_values

    def _policy_gradient(self, minibatch: Rows, samples: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return the gradient with respect to the distributions' parameters, and add the losses to ``samples``."""
        distribution = self._networks.distribution(minibatch.masks)
        log_prob, entropy = distribution.log_prob(minibatch.actions), distribution.entropy()
        log_ratio = log_prob - minibatch.old_log_prob
        kl = None if minibatch.old is None else distribution.kl_from(minibatch.old)
        batch = Batch(np.exp(log_ratio), minibatch.advantages, kl)
        policy_losses, d_log_prob, d_kl = gradient_of(self._objective, batch)
        entropy = -log_prob if entropy is None else entropy
        samples |= {"policy_loss": policy_losses, "entropy": entropy, "log_ratio": log_ratio}
        d_entropy = -self._ent_coef / len(log_ratio)
        gradients = distribution.gradient(minibatch.actions, d_log_prob, d_entropy, minibatch.old, d_kl)
        return masked_gradient(gradients, minibatch.masks)

    def _value_gradient(self, minibatch: Rows, samples: dict[str, np.ndarray]) -> np.ndarray:
        """Return the gradient with respect to the values, and add the losses to ``samples``."""
        samples["value_loss"], d_values = losses.value_gradient(
            self._networks.values(), minibatch.old_values, minibatch.returns, self._plan.clip_range_vf
        )
        return d_values * self._vf_coef

    def approximate_kl(self) -> float:
        return float(losses.approximate_kls(self._measurements.last_log_ratio).mean())

    def step(self) -> None:
        self._networks.backward(*self._gradients)
        if self._plan.processes.size > 1:
            self._plan.processes.average(th.from_numpy(self._part.gradient))
        clip_norm(self._part.gradient, self._descent.max_grad_norm)
        self._part.adam.step(self._part.vector, self._part.gradient)

    def measured(self) -> Measured:
        return self._measurements.measured()


def normalized(advantages: np.ndarray, batch_size: int, processes: Processes) -> np.ndarray:
    """Normalise the advantages of consecutive minibatches, each minibatch by itself.

    :param advantages: the advantages of a pass, shape ``(rows,)``
    :param processes: the processes that share the minibatches
    :return: the normalised advantages, same shape
    """
    whole = len(advantages) - len(advantages) % batch_size
    parts = [advantages[:whole].reshape(-1, batch_size), advantages[None, whole:]]
    if processes.size == 1:
        made = [losses.normalized_advantages(part) for part in parts]
    else:
        made = [normalized_together(th.from_numpy(part), processes).numpy() for part in parts if part.size]
    return np.concatenate([part.ravel() for part in made])
