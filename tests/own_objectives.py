"""Objectives and an algorithm as a user writes them, named in text by tests."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th

from sb3_ppo_variants import ArrayObjective, Batch, Gradient, PPOCustom


@dataclass(frozen=True)
class SPO(ArrayObjective):
    """The objective of docs/howto/own_objective.md."""

    epsilon: float = 0.2

    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        penalty = batch.advantages.abs() / (2 * self.epsilon) * (batch.ratio - 1) ** 2
        return -(batch.ratio * batch.advantages - penalty).mean()

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        r, a, slope = batch.ratio, batch.advantages, np.abs(batch.advantages) / self.epsilon
        losses = -(r * a - slope / 2 * (r - 1) ** 2)
        return Gradient(losses, d_log_ratio=-(a * r - slope * (r - 1) * r) / len(r))

    def coefficients(self) -> dict[str, float]:
        return {"epsilon": self.epsilon}


class PPOSPO(PPOCustom):
    """Sets an argument of its base class."""

    def __init__(self, *args: Any, eps: float = 0.2, **kwargs: Any):
        super().__init__(*args, objective=SPO(eps), **kwargs)
