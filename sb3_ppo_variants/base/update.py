"""One update of the policy, minibatch by minibatch."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs, RolloutBufferSamples

from sb3_ppo_variants import losses
from sb3_ppo_variants.base.coefficients import Coefficients
from sb3_ppo_variants.base.finite import Snapshot, check_parameters
from sb3_ppo_variants.base.rollout import minibatches, rollout_observations
from sb3_ppo_variants.base.rollout_kl import RolloutKL
from sb3_ppo_variants.base.statistics import MinibatchStatistics, UpdateStatistics
from sb3_ppo_variants.kl import MissingKLError

# Enough rows to keep a small network busy, few enough for the activations of a large one to stay in the cache.
ROWS_AT_ONCE = 128

PolicyLoss = Callable[[th.Tensor, th.Tensor, th.Tensor | None, Coefficients], th.Tensor]


class Trained(Protocol):
    """What an update reads of the model that is trained."""

    policy: ActorCriticPolicy
    rollout_buffer: RolloutBuffer
    action_space: spaces.Space
    batch_size: int
    normalize_advantage: bool
    ent_coef: float
    vf_coef: float
    max_grad_norm: float

    @property
    def _policy_loss(self) -> PolicyLoss: ...


class Update(Protocol):
    """How the training loop sees an update: for each minibatch its loss, then a step down its gradient."""

    def minibatches(self) -> Iterator[Any]:
        """The rollout in minibatches, shuffled anew."""

    def loss(self, minibatch: Any) -> None:
        """Measure the loss of a minibatch."""

    def approximate_kl(self) -> float:
        """SB3's estimate of the KL on the minibatch measured last."""

    def step(self) -> None:
        """Descend the gradient of the loss measured last."""

    def check_finite(self) -> None:
        """:raises NonFiniteError: if a loss, a gradient or a parameter is not finite"""

    def undo(self) -> None:
        """Leave the policy and its optimizer as they were before the update, wherever it is."""

    def finish(self) -> float | None:
        """End the update.

        :return: the mean of KL(old || new) over the rollout; ``None`` if the policy's distribution has no known KL
        """

    def statistics(self) -> dict[str, float]:
        """What the minibatches measured, by SB3's keys."""


class TorchUpdate:
    """The reference: SB3's update with the variant's policy objective, equation 9 of the paper.

    :param model: a model with a full rollout buffer
    :param coefficients: the coefficients of this update's objective
    :raises MissingKLError: if the objective has a KL penalty and the policy's distribution no registered KL
    """

    def __init__(self, model: Trained, coefficients: Coefficients):
        self._model = model
        self._policy = model.policy
        self._coefficients = coefficients
        self._parameters = list(model.policy.parameters())
        self._before = Snapshot(model.policy, [model.policy.optimizer])
        self._rollout_kl = self._remember_policy()
        self._statistics = UpdateStatistics()
        self._loss: th.Tensor

    def _remember_policy(self) -> RolloutKL | None:
        try:
            return RolloutKL(self._policy, self._model.rollout_buffer, self._observations)
        except MissingKLError:
            if self._coefficients.kl_coef is not None:
                raise
            return None  # Without a penalty the KL is only logged.

    def _observations(self) -> Iterator[PyTorchObs]:
        """All observations of the rollout, in chunks."""
        return rollout_observations(self._model.rollout_buffer, ROWS_AT_ONCE)

    def minibatches(self) -> Iterator[tuple[np.ndarray | None, RolloutBufferSamples]]:
        """The minibatches of the buffer, with their row numbers."""
        self._statistics.start_epoch()
        return minibatches(self._model.rollout_buffer, self._model.batch_size)

    def loss(self, minibatch: tuple[np.ndarray | None, RolloutBufferSamples]) -> None:
        """Equation 9."""
        rows, batch = minibatch
        model, coefficients = self._model, self._coefficients
        actions = batch.actions.long().flatten() if isinstance(model.action_space, spaces.Discrete) else batch.actions
        values, log_prob, entropy = self._policy.evaluate_actions(batch.observations, actions)
        advantages = batch.advantages
        if model.normalize_advantage:
            advantages = losses.normalize_advantages(advantages)
        log_ratio = log_prob - batch.old_log_prob
        ratio = th.exp(log_ratio)
        kl = None
        if self._rollout_kl is not None and coefficients.kl_coef is not None:
            kl = self._rollout_kl.of_minibatch(rows, batch.observations)

        policy_loss = model._policy_loss(ratio, advantages, kl, coefficients)
        value_loss = losses.value_loss(values.flatten(), batch.old_values, batch.returns, coefficients.clip_range_vf)
        entropy_loss = losses.entropy_loss(entropy, log_prob)
        self._loss = policy_loss + model.ent_coef * entropy_loss + model.vf_coef * value_loss

        with th.no_grad():
            approx_kl = losses.approximate_kl(log_ratio)
            clip_fraction = None
            if coefficients.clip_range is not None:
                clip_fraction = losses.clip_fraction(ratio, coefficients.clip_range)
        measured = MinibatchStatistics(policy_loss, value_loss, entropy_loss, self._loss, approx_kl, clip_fraction)
        self._statistics.add(measured.detach())

    def approximate_kl(self) -> float:
        """SB3's estimate of the KL on the minibatch measured last."""
        return float(self._statistics.last.approx_kl)

    def step(self) -> None:
        """One step of the policy's optimizer, the gradient clipped."""
        self._policy.optimizer.zero_grad()
        self._loss.backward()
        norm = th.nn.utils.clip_grad_norm_(self._parameters, self._model.max_grad_norm)
        self._statistics.add_gradient_norm(norm)
        self._policy.optimizer.step()

    def check_finite(self) -> None:
        """:raises NonFiniteError: if a loss, a gradient or a parameter is not finite"""
        self._statistics.check_finite()
        check_parameters(self._policy)

    def undo(self) -> None:
        """Leave the policy and its optimizer as they were before the update."""
        self._before.restore()

    def finish(self) -> float | None:
        """The mean of KL(old || new) over the rollout, if it is known."""
        return None if self._rollout_kl is None else self._rollout_kl.of_rollout()

    def statistics(self) -> dict[str, float]:
        """What the minibatches measured, by SB3's keys."""
        return self._statistics.summary()
