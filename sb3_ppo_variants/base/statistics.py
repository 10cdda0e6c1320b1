"""What the minibatches of an update measured."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch as th


class MinibatchStatistics(NamedTuple):
    """Scalar tensors measured on one minibatch."""

    policy_loss: th.Tensor
    value_loss: th.Tensor
    entropy_loss: th.Tensor
    loss: th.Tensor
    approx_kl: th.Tensor
    clip_fraction: th.Tensor | None

    def detach(self) -> "MinibatchStatistics":
        """The values without the graph of their gradients."""
        return self._replace(
            policy_loss=self.policy_loss.detach(),
            value_loss=self.value_loss.detach(),
            entropy_loss=self.entropy_loss.detach(),
            loss=self.loss.detach(),
        )


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

    @property
    def last(self) -> MinibatchStatistics:
        """The minibatch appended last."""
        return self._minibatches[-1]

    def summary(self) -> dict[str, float]:
        """SB3's ``train/*`` values by their keys."""
        columns = {
            name: th.stack(tensors)
            for name, tensors in zip(MinibatchStatistics._fields, zip(*self._minibatches, strict=True), strict=True)
            if tensors[0] is not None
        }
        table = th.stack(list(columns.values())).cpu().numpy().astype(np.float64)
        return summarize(dict(zip(columns, table, strict=True)), self._epoch_start)


def summarize(values: Mapping[str, np.ndarray], epoch_start: int) -> dict[str, float]:
    """SB3's ``train/*`` values by their keys.

    As in SB3, ``train/loss`` is that of the last minibatch, ``train/approx_kl`` is the mean over the last epoch and all
    others are means over the update.

    :param values: for each field of :class:`MinibatchStatistics` that was measured, a value per minibatch
    :param epoch_start: the first minibatch of the last epoch
    """
    summary = {
        "train/entropy_loss": values["entropy_loss"].mean(),
        "train/policy_gradient_loss": values["policy_loss"].mean(),
        "train/value_loss": values["value_loss"].mean(),
        "train/approx_kl": values["approx_kl"][epoch_start:].mean(),
        "train/loss": values["loss"][-1],
    }
    if "clip_fraction" in values:
        summary["train/clip_fraction"] = values["clip_fraction"].mean()
    return {key: float(value) for key, value in summary.items()}
