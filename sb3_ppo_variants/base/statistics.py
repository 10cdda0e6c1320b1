"""What the minibatches of an update measured."""

from typing import Any, NamedTuple

import numpy as np
import torch as th


class MinibatchStatistics(NamedTuple):
    """Scalars measured on one minibatch: all tensors, or all numbers."""

    policy_loss: Any
    value_loss: Any
    entropy_loss: Any
    loss: Any
    approx_kl: Any
    clip_fraction: Any | None

    def detach(self) -> "MinibatchStatistics":
        """Tensors without the graph of their gradients."""
        return MinibatchStatistics(*(None if value is None else value.detach() for value in self))


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
