"""The update of the reference path over arrays."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppo_variants.base.coefficients import Coefficients
from sb3_ppo_variants.base.statistics import MinibatchStatistics
from sb3_ppo_variants.base.update import Trained
from sb3_ppo_variants.fast import objective
from sb3_ppo_variants.fast.adam import clip_norm
from sb3_ppo_variants.fast.distributions import Distribution
from sb3_ppo_variants.fast.networks import Features
from sb3_ppo_variants.fast.parameters import load_adam, store_adam
from sb3_ppo_variants.fast.trained import TrainedNetworks


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
        self._networks = TrainedNetworks(model.policy)
        self._adam = load_adam(model.policy.optimizer, self._networks.layout)
        self._rollout = self._read(model.rollout_buffer)
        self._old = self._networks.distribution_of(self._rollout.features)
        if coefficients.kl_coef is not None:
            self._rollout = self._rollout._replace(old=self._old)
        self._gradients: tuple[tuple[np.ndarray, ...], np.ndarray]

    def _read(self, buffer: RolloutBuffer) -> Samples:
        """The rollout in the order in which the buffer numbers its rows."""
        dtype = self._networks.vector.dtype

        def rows(array: np.ndarray) -> np.ndarray:
            return array if buffer.generator_ready else buffer.swap_and_flatten(array)

        def numbers(array: np.ndarray) -> np.ndarray:
            return rows(array).ravel().astype(dtype, copy=False)

        return Samples(
            features=Features(self._model.policy, dtype)(rows(buffer.observations)),
            actions=rows(buffer.actions).astype(self._networks.action_dtype, copy=False),
            old_log_prob=numbers(buffer.log_probs),
            advantages=numbers(buffer.advantages),
            returns=numbers(buffer.returns),
            old_values=numbers(buffer.values),
            old=None,
        )

    def minibatches(self) -> Iterator[Samples]:
        """The rollout shuffled as the buffer would, gathered once."""
        shuffled = self._rollout.take(np.random.permutation(len(self._rollout.features)))
        for start in range(0, len(shuffled.features), self._model.batch_size):
            yield shuffled.take(slice(start, start + self._model.batch_size))

    def loss(self, minibatch: Samples) -> MinibatchStatistics:
        """Equation 9 and its gradient with respect to the networks' outputs.

        :raises ValueError: if the loss is not finite
        """
        model, coefficients, n = self._model, self._coefficients, len(minibatch.actions)
        distribution, values = self._networks.forward(minibatch.features)
        advantages = minibatch.advantages
        if model.normalize_advantage:
            advantages = objective.normalize_advantages(advantages)
        log_ratio = distribution.log_prob(minibatch.actions) - minibatch.old_log_prob
        ratio = np.exp(log_ratio)
        entropy_loss = -objective.mean(distribution.entropy())
        policy_loss, d_log_prob = objective.surrogate_loss(log_ratio, ratio, advantages, coefficients.clip_range)
        kl_coef = 0.0
        if coefficients.kl_coef is not None:
            kl_coef = coefficients.kl_coef
            policy_loss += kl_coef * objective.mean(distribution.kl_from(minibatch.old))
        value_loss, d_values = objective.value_loss(
            values, minibatch.old_values, minibatch.returns, coefficients.clip_range_vf
        )
        d_distribution = distribution.gradient(
            minibatch.actions, d_log_prob, d_entropy=-model.ent_coef / n, old=minibatch.old, d_kl=kl_coef / n
        )
        self._gradients = d_distribution, d_values * model.vf_coef

        loss = policy_loss + model.ent_coef * entropy_loss + model.vf_coef * value_loss
        if not math.isfinite(loss):
            raise ValueError(f"the loss of a minibatch is {loss}; the policy is as it was before this update")
        approx_kl = objective.approximate_kl(log_ratio, ratio)
        clip_fraction = None
        if coefficients.clip_range is not None:
            clip_fraction = objective.clip_fraction(ratio, coefficients.clip_range)
        return MinibatchStatistics(policy_loss, value_loss, entropy_loss, loss, approx_kl, clip_fraction)

    def step(self) -> None:
        """One step of Adam, the gradient clipped."""
        networks = self._networks
        networks.backward(*self._gradients)
        clip_norm(networks.gradient, self._model.max_grad_norm)
        self._adam.step(networks.vector, networks.gradient)

    def finish(self) -> float:
        """Write the policy and its optimizer.

        :return: the mean of KL(old || new) over the rollout
        """
        layout = self._networks.layout
        layout.scatter(self._networks.vector, layout.parameters)
        store_adam(self._adam, self._model.policy.optimizer, layout)
        new = self._networks.distribution_of(self._rollout.features)
        return float(np.mean(new.kl_from(self._old), dtype=np.float64))
