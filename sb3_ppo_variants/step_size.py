"""The rule that adapts Adam's step size to the KL of the updates."""

from dataclasses import dataclass, replace
from typing import Literal

from sb3_ppo_variants.arguments import ABOVE_ONE, POSITIVE, one_of
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.saving import register_plain

EVERY = one_of("update", "minibatch")


@dataclass(frozen=True, kw_only=True)
class KLAdaptive:
    """An Adam step size that keeps the KL of an update near a target; pass it as ``learning_rate``.

    If the exact mean of KL(old || new) is above ``tolerance * desired_kl``, the step size is divided by ``factor``; if
    it is below ``desired_kl / tolerance``, it is multiplied by ``factor``.

    The PPO paper (https://arxiv.org/abs/1707.06347, table 4) adjusts Adam's step size by a target value of the KL on
    Roboschool, but does not give its rule. The rule and its constants are those of OpenAI Baselines' ACKTR, which
    applies it after each update, and of rsl_rl's PPO, which applies it before each step.

    :param desired_kl: the target, in nats per state, > 0
    :param learning_rate: the step size to begin with, between the bounds. The model's attribute ``learning_rate`` is
        replaced by an object with the adapted step size after each update
    :param every: ``"update"`` adapts the step size after each update, by the KL over the rollout; ``"minibatch"``
        adapts it before each step, by the KL over the minibatch, except before the first step of an update, where the
        policy has not moved yet
    :param factor: > 1
    :param tolerance: > 1
    :param min_learning_rate: the lower bound, > 0
    :param max_learning_rate: the upper bound
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    desired_kl: float = 0.01
    learning_rate: float = 3e-4
    every: Literal["update", "minibatch"] = "update"
    factor: float = 1.5
    tolerance: float = 2.0
    min_learning_rate: float = 1e-5
    max_learning_rate: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("desired_kl", "learning_rate", "min_learning_rate", "max_learning_rate"):
            POSITIVE.check(name, getattr(self, name))
        for name in ("factor", "tolerance"):
            ABOVE_ONE.check(name, getattr(self, name))
        EVERY.check("every", self.every)
        low, high = self.min_learning_rate, self.max_learning_rate
        if not low <= self.learning_rate <= high:
            refuse(
                "learning_rate",
                self.learning_rate,
                f"a number in [{low:g}, {high:g}], the bounds of {type(self).__name__}",
            )

    @property
    def in_minibatches(self) -> bool:
        """Whether the step size is adapted before each step."""
        return self.every == "minibatch"

    def adapted(self, learning_rate: float, kl: float) -> float:
        """Compute the next step size.

        :param learning_rate: the last step size
        :param kl: the mean of KL(old || new). A KL of 0 changes nothing, since the policy has not moved
        """
        if kl > self.tolerance * self.desired_kl:
            return max(learning_rate / self.factor, self.min_learning_rate)
        if 0 < kl < self.desired_kl / self.tolerance:
            return min(learning_rate * self.factor, self.max_learning_rate)
        return learning_rate

    def after_update(self, learning_rate: float, kl: float | None) -> "KLAdaptive":
        """Return the same rule with the step size of the next update.

        :param learning_rate: the last step size of the update
        :param kl: the mean of KL(old || new) over the rollout
        """
        if not self.in_minibatches:
            assert kl is not None, "a model with this step size measures the KL"
            learning_rate = self.adapted(learning_rate, kl)
        return replace(self, learning_rate=learning_rate)


register_plain(KLAdaptive)
