"""The update of the reference path over arrays."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppo_variants.base.coefficients import Coefficients
from sb3_ppo_variants.base.rollout import in_rows
from sb3_ppo_variants.base.update import Trained
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.fast import objective
from sb3_ppo_variants.fast.adam import clip_norm
from sb3_ppo_variants.fast.distributions import Distribution
from sb3_ppo_variants.fast.features import Features
from sb3_ppo_variants.fast.measurements import Measurements
from sb3_ppo_variants.fast.parameters import gradients, load_adam, store_adam
from sb3_ppo_variants.fast.trained import TrainedNetworks
from sb3_ppo_variants.guards.finite import is_finite


class Samples(NamedTuple):
    """Rows of a rollout."""

    features: np.ndarray
    actions: np.ndarray
    old_log_prob: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    old_values: np.ndarray
    old: Distribution | None
    """The distributions that the actions were drawn from, where the objective has a KL penalty."""

    def take(self, rows: Any) -> "Samples":
        """Some of the rows."""
        old = None if self.old is None else self.old.take(rows)
        return Samples._make([*(array[rows] for array in self[:-1]), old])


class NumpyUpdate:
    """What :class:`sb3_ppo_variants.base.update.TorchUpdate` does, without a graph.

    The policy and its optimizer are read when it is made and written by :meth:`finish`.

    :param model: a model with a full rollout buffer
    :param coefficients: the coefficients of this update's objective
    """

    def __init__(self, model: Trained, coefficients: Coefficients):
        self._model = model
        self._coefficients = coefficients
        # NumPy's own scalars would make arrays of single precision double.
        self._ent_coef, self._vf_coef = float(model.ent_coef), float(model.vf_coef)
        self._networks = TrainedNetworks(model.policy)
        self._adam = load_adam(model.policy.optimizer, self._networks.layout)
        self._rollout = self._read(model.rollout_buffer)
        self._old = self._networks.distribution_of(self._rollout.features)
        if coefficients.kl_coef is not None:
            self._rollout = self._rollout._replace(old=self._old)
        self._measurements = Measurements(coefficients.clip_range, self._ent_coef, self._vf_coef)
        self._gradients: tuple[tuple[np.ndarray, ...], np.ndarray]

    def _read(self, buffer: RolloutBuffer) -> Samples:
        """The rollout in the order in which the buffer numbers its rows."""
        dtype = self._networks.vector.dtype

        def rows(array: np.ndarray) -> np.ndarray:
            return in_rows(buffer, array)

        def numbers(array: np.ndarray) -> np.ndarray:
            return rows(array).ravel().astype(dtype, copy=False)

        observations: Any = buffer.observations
        if isinstance(observations, dict):
            observations = {key: rows(array) for key, array in observations.items()}
        else:
            observations = rows(observations)
        return Samples(
            features=Features(self._model.policy, dtype)(observations),
            actions=rows(buffer.actions).astype(self._networks.action_dtype, copy=False),
            old_log_prob=numbers(buffer.log_probs),
            advantages=numbers(buffer.advantages),
            returns=numbers(buffer.returns),
            old_values=numbers(buffer.values),
            old=None,
        )

    def minibatches(self) -> Iterator[Samples]:
        """The rollout shuffled as the buffer would, gathered once."""
        self._measurements.start_epoch()
        size = self._model.batch_size
        shuffled = self._rollout.take(np.random.permutation(len(self._rollout.features)))
        if self._model.normalize_advantage:
            shuffled = shuffled._replace(advantages=_normalized(shuffled.advantages, size))
        for start in range(0, len(shuffled.features), size):
            yield shuffled.take(slice(start, start + size))

    def loss(self, minibatch: Samples) -> None:
        """Equation 9 and its gradient with respect to the networks' outputs."""
        coefficients, n = self._coefficients, len(minibatch.actions)
        distribution, values = self._networks.forward(minibatch.features)
        log_ratio = distribution.log_prob(minibatch.actions) - minibatch.old_log_prob
        policy_losses, d_log_prob = objective.surrogate_loss(
            np.exp(log_ratio), minibatch.advantages, coefficients.clip_range
        )
        kl_coef = 0.0
        if coefficients.kl_coef is not None:
            kl_coef = coefficients.kl_coef
            policy_losses += kl_coef * distribution.kl_from(minibatch.old)
        value_losses, d_values = objective.value_loss(
            values, minibatch.old_values, minibatch.returns, coefficients.clip_range_vf
        )
        d_distribution = distribution.gradient(
            minibatch.actions, d_log_prob, d_entropy=-self._ent_coef / n, old=minibatch.old, d_kl=kl_coef / n
        )
        self._gradients = d_distribution, d_values * self._vf_coef
        self._measurements.add(policy_losses, value_losses, distribution.entropy(), log_ratio)

    def approximate_kl(self) -> float:
        """SB3's estimate of the KL on the minibatch measured last."""
        return float(objective.approximate_kl(self._measurements.last_log_ratio).mean())

    def step(self) -> None:
        """One step of Adam, the gradient clipped.

        :raises NonFiniteError: if the gradient is not finite
        """
        networks = self._networks
        networks.backward(*self._gradients)
        clip_norm(networks.gradient, self._model.max_grad_norm)
        self._adam.step(networks.vector, networks.gradient)

    def check_finite(self) -> None:
        """:raises NonFiniteError: if a loss or a parameter is not finite"""
        self._measurements.check_finite()
        if not is_finite(self._networks.vector):
            raise NonFiniteError("vector of all parameters", "not finite")

    def undo(self) -> None:
        """Nothing has been written yet."""

    def finish(self) -> float:
        """Write the policy, the gradient of the last step and the optimizer.

        :return: the mean of KL(old || new) over the rollout
        """
        networks = self._networks
        new = networks.distribution_of(self._rollout.features)
        kl = float(np.mean(new.kl_from(self._old), dtype=np.float64))
        # Last, so that until here nothing is written which an interrupt would have to take back.
        networks.layout.scatter(networks.vector, networks.layout.parameters)
        networks.layout.scatter(networks.gradient, gradients(networks.layout.parameters))
        store_adam(self._adam, self._model.policy.optimizer, networks.layout)
        return kl

    def statistics(self) -> dict[str, float]:
        """What the minibatches measured, by SB3's keys."""
        return self._measurements.summary()


def _normalized(advantages: np.ndarray, batch_size: int) -> np.ndarray:
    """The advantages of consecutive minibatches, each normalised."""
    whole = len(advantages) - len(advantages) % batch_size
    minibatches = advantages[:whole].reshape(-1, batch_size)
    return np.concatenate(
        [objective.normalize_advantages(minibatches).ravel(), objective.normalize_advantages(advantages[whole:])]
    )
