"""The values that the updates of a run log."""

import math
from collections import defaultdict

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

# The logged values to keep: names of SB3 and of this package, without "train/".
KEPT = (
    "kl", "approx_kl", "entropy_loss", "explained_variance", "value_loss", "std", "kl_coef", "clip_range",
    "clip_fraction",
)  # fmt: skip


class Logged(BaseCallback):
    """Keeps the values that each update logs, with the step of the update."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[str, list[int]] = defaultdict(list)
        self._values: dict[str, list[float]] = defaultdict(list)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._keep()

    def _on_training_end(self) -> None:
        self._keep()

    def _keep(self) -> None:
        # Read the values before SB3 dumps and clears them, which it does between a rollout and its update.
        for name in KEPT:
            value = self.logger.name_to_value.get(f"train/{name}")
            if value is not None and math.isfinite(value):
                self._steps[name].append(self.num_timesteps)
                self._values[name].append(float(value))

    def curves(self, timesteps: int, number: int) -> dict[str, list[float | None]]:
        """Return, by name, the mean over the updates in each of ``number`` equal spans of the training's timesteps."""
        return {name: self._curve(name, timesteps, number) for name in self._values}

    def _curve(self, name: str, timesteps: int, number: int) -> list[float | None]:
        spans = np.ceil(np.array(self._steps[name]) * number / timesteps).astype(int).clip(1, number) - 1
        counts = np.bincount(spans, minlength=number)
        sums = np.bincount(spans, weights=self._values[name], minlength=number)
        return [float(f"{total / n:.5g}") if n else None for total, n in zip(sums, counts, strict=True)]
