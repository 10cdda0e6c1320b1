"""The division of updates into descents."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch.optim import Optimizer

from sb3_ppo_variants.arguments.schedules import current_value
from sb3_ppo_variants.updates.plan import Descent


class Trained(Protocol):
    """The attributes of a model that are read to plan its updates."""

    policy: ActorCriticPolicy
    value_optimizer: Optimizer
    lr_schedule: Schedule
    n_epochs: int
    max_grad_norm: float  # It may also be None, but SB3's annotation says float.
    target_kl: float | None
    _current_progress_remaining: float


def largest_norm(max_grad_norm: float | None) -> float:
    """Return the maximum norm of the gradient, infinite for ``None``."""
    return math.inf if max_grad_norm is None else max_grad_norm


class Updates(ABC):
    """Divides an update into descents, and creates the optimizers that they need."""

    optimizers: ClassVar[Sequence[str]] = ()
    """The model's attributes that hold optimizers other than ``policy.optimizer``. They are saved with the model."""

    @abstractmethod
    def prepare(self, model: Trained) -> None:
        """Create the optimizers of a model whose policy is new."""

    @abstractmethod
    def descents(self, model: Trained) -> list[Descent]:
        """Return the descents of the next update, the policy's first."""

    @abstractmethod
    def log(self, descents: Sequence[Descent], epochs: Sequence[int]) -> dict[str, float]:
        """Return the values that are logged after an update in addition to its losses.

        :param descents: the descents of the update
        :param epochs: for each descent, the number of passes that were begun
        """


class JointUpdates(Updates):
    """One optimizer for all terms of equation 9 of https://arxiv.org/abs/1707.06347, as in SB3."""

    def prepare(self, model: Trained) -> None:
        """Do nothing: the policy already has its optimizer."""

    def descents(self, model: Trained) -> list[Descent]:
        """Return a single descent for the whole loss."""
        policy = model.policy
        return [
            Descent(
                policy.optimizer,
                list(policy.parameters()),
                learning_rate=current_value("learning_rate", model.lr_schedule, model._current_progress_remaining),
                epochs=model.n_epochs,
                max_grad_norm=largest_norm(model.max_grad_norm),
                target_kl=model.target_kl,
            )
        ]

    def log(self, descents: Sequence[Descent], epochs: Sequence[int]) -> dict[str, float]:
        return {"learning_rate": descents[0].learning_rate}


JOINT = JointUpdates()
