"""How an update is divided into descents."""

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
    """What is read of a model to plan its updates."""

    policy: ActorCriticPolicy
    value_optimizer: Optimizer
    lr_schedule: Schedule
    n_epochs: int
    max_grad_norm: float  # Or None, which SB3's type leaves out.
    target_kl: float | None
    _current_progress_remaining: float


def largest_norm(max_grad_norm: float | None) -> float:
    """The largest norm of a gradient, infinite for ``None``."""
    return math.inf if max_grad_norm is None else max_grad_norm


class Updates(ABC):
    """How an update is divided into descents, and what optimizers they need."""

    optimizers: ClassVar[Sequence[str]] = ()
    """The model's attributes with optimizers besides ``policy.optimizer``, which are saved with the model."""

    @abstractmethod
    def prepare(self, model: Trained) -> None:
        """Make the optimizers of a model whose policy is new."""

    @abstractmethod
    def descents(self, model: Trained) -> list[Descent]:
        """What the next update does, the policy's descent first."""

    @abstractmethod
    def log(self, descents: Sequence[Descent], epochs: Sequence[int]) -> dict[str, float]:
        """What is logged of an update besides its losses.

        :param descents: those of the update
        :param epochs: for each of them, the passes that began
        """


class JointUpdates(Updates):
    """SB3's way: one optimizer descends equation 9 of https://arxiv.org/abs/1707.06347 as a whole."""

    def prepare(self, model: Trained) -> None:
        """Nothing to do: the policy has its optimizer."""

    def descents(self, model: Trained) -> list[Descent]:
        """One descent of everything."""
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
