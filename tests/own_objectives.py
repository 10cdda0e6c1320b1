"""Objectives and an algorithm as a user writes them, named in text by tests."""

from dataclasses import dataclass
from typing import Any

import torch as th

from sb3_ppo_variants import Batch, Objective, PPOCustom


@dataclass(frozen=True)
class SPO(Objective):
    """The objective of docs/howto/own_objective.md."""

    epsilon: float = 0.2

    def loss(self, batch: Batch) -> th.Tensor:
        penalty = batch.advantages.abs() / (2 * self.epsilon) * (batch.ratio - 1) ** 2
        return -(batch.ratio * batch.advantages - penalty).mean()

    def coefficients(self) -> dict[str, float]:
        return {"epsilon": self.epsilon}


class PPOSPO(PPOCustom):
    """Sets an argument of its base class."""

    def __init__(self, *args: Any, eps: float = 0.2, **kwargs: Any):
        super().__init__(*args, objective=SPO(eps), **kwargs)
