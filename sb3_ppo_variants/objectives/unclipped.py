"""The surrogate objective as it is."""

from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_ppo_variants.objectives.objective import ArrayObjective, Batch, Gradient


@dataclass(frozen=True)
class Unclipped(ArrayObjective):
    """Equation 6 of https://arxiv.org/abs/1707.06347, "no clipping or penalty": L^CPI = E[r A]."""

    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        """-E[r A]."""
        return -(batch.advantages * batch.ratio).mean()

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        """d(-r A)/d log r = -r A."""
        losses = -(batch.advantages * batch.ratio)
        return Gradient(losses, losses / len(losses))
