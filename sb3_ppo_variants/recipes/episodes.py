"""The episodes of a training."""

from itertools import pairwise

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback


class Episodes(BaseCallback):
    """Keeps the return of every episode with the step at which it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[int] = []
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.ends.append(self.num_timesteps)
                self.returns.append(float(info["episode"]["r"]))
        return True

    def spans(self, timesteps: int, number: int) -> list[np.ndarray]:
        """The returns of the episodes that ended in each of some equal spans of steps.

        :param timesteps: steps of the training
        :param number: number of spans
        """
        ends, returns = np.array(self.ends), np.array(self.returns)
        edges = np.linspace(0, timesteps, number + 1)
        return [returns[(low < ends) & (ends <= high)] for low, high in pairwise(edges)]
