"""The clipped surrogate objective."""

from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_ppo_variants.arguments.rules import NON_NEGATIVE
from sb3_ppo_variants.objectives.objective import ArrayObjective, Batch, Gradient


@dataclass(frozen=True)
class Clipped(ArrayObjective):
    """Equation 7 of https://arxiv.org/abs/1707.06347: L^CLIP = E[min(r A, clip(r, 1 - eps, 1 + eps) A)].

    :param clip_range: eps, >= 0
    :raises ArgumentError: (a ``ValueError``) if it has a value that is not allowed
    """

    clip_range: float

    def __post_init__(self) -> None:
        NON_NEGATIVE.check("clip_range", self.clip_range)

    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        """-E[min(r A, clip(r, 1 - eps, 1 + eps) A)]."""
        unclipped = batch.advantages * batch.ratio
        clipped = batch.advantages * th.clamp(batch.ratio, 1 - self.clip_range, 1 + self.clip_range)
        return -th.min(unclipped, clipped).mean()

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        """d(-min(...))/d log r = -r A where the minimum is the unclipped term, else 0."""
        unclipped = batch.advantages * batch.ratio
        clipped = np.minimum(np.maximum(batch.ratio, 1 - self.clip_range), 1 + self.clip_range)
        clipped *= batch.advantages
        d_log_ratio = unclipped * (unclipped <= clipped)
        d_log_ratio /= -len(unclipped)
        return Gradient(-np.minimum(unclipped, clipped), d_log_ratio)

    def coefficients(self) -> dict[str, float]:
        """Return eps."""
        return {"clip_range": self.clip_range}
