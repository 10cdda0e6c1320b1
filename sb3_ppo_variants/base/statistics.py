"""What the minibatches of an update measured."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch as th

Scalar: TypeAlias = th.Tensor | float


class MinibatchStatistics(NamedTuple):
    """Scalars measured on one minibatch: tensors without a graph, or numbers."""

    policy_loss: Scalar
    value_loss: Scalar
    entropy_loss: Scalar
    loss: Scalar
    approx_kl: Scalar
    clip_fraction: Scalar | None


class UpdateStatistics:
    """Gathers tensors on their device and reads them once per update: reading each would wait for the device."""

    def __init__(self) -> None:
        self._minibatches: list[MinibatchStatistics] = []
        self._epoch_start = 0

    def start_epoch(self) -> None:
        """Note where the minibatches of an epoch begin."""
        self._epoch_start = len(self._minibatches)

    def add(self, minibatch: MinibatchStatistics) -> None:
        """Append one minibatch."""
        self._minibatches.append(minibatch)

    def summary(self) -> dict[str, float]:
        """SB3's ``train/*`` values by their keys.

        As in SB3, ``train/loss`` is that of the last minibatch, ``train/approx_kl`` is the mean over the last epoch
        and all others are means over the update.
        """
        columns: dict[str, Any] = {
            name: column
            for name, column in zip(MinibatchStatistics._fields, zip(*self._minibatches, strict=True), strict=True)
            if column[0] is not None
        }
        values = dict(zip(columns, _read(list(columns.values())), strict=True))
        summary = {
            "train/entropy_loss": values["entropy_loss"].mean(),
            "train/policy_gradient_loss": values["policy_loss"].mean(),
            "train/value_loss": values["value_loss"].mean(),
            "train/approx_kl": values["approx_kl"][self._epoch_start :].mean(),
            "train/loss": values["loss"][-1],
        }
        if "clip_fraction" in values:
            summary["train/clip_fraction"] = values["clip_fraction"].mean()
        return {key: float(value) for key, value in summary.items()}


def _read(columns: Any) -> np.ndarray:
    if isinstance(columns[0][0], th.Tensor):
        columns = th.stack([th.stack(column) for column in columns]).cpu().numpy()
    return np.asarray(columns, dtype=np.float64)
