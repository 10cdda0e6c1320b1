"""A record of the episodes of a training run."""

from itertools import pairwise
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback


class Episodes(BaseCallback):
    """Records the return of every episode and the timestep at which it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[int] = []
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        self.note(self.num_timesteps, self.locals["infos"])
        return True

    def note(self, step: int, infos: list[dict[str, Any]]) -> None:
        """Record the episodes that ended in a step, as its infos report them."""
        for info in infos:
            if "episode" in info:
                self.ends.append(step)
                self.returns.append(float(info["episode"]["r"]))

    def spans(self, timesteps: int, number: int) -> list[np.ndarray]:
        """Divide the timesteps into ``number`` equal spans, and list the returns of the episodes that ended in each."""
        ends, returns = np.array(self.ends), np.array(self.returns)
        edges = np.linspace(0, timesteps, number + 1)
        return [returns[(low < ends) & (ends <= high)] for low, high in pairwise(edges)]
