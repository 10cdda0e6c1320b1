"""What the minibatches of an update measured."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch as th

from sb3_ppo_variants.errors import NonFiniteError

# What must be finite, causes before effects.
CHECKED = ("policy_loss", "value_loss", "entropy_loss", "loss", "gradient")


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
        self._gradient_norms: list[th.Tensor] = []
        self._epoch_start = 0

    def start_epoch(self) -> None:
        """Note where the minibatches of an epoch begin."""
        self._epoch_start = len(self._minibatches)

    def add(self, minibatch: MinibatchStatistics) -> None:
        """Append one minibatch."""
        self._minibatches.append(minibatch)

    def add_gradient_norm(self, norm: th.Tensor) -> None:
        """Append the norm of the gradient of the minibatch appended last."""
        self._gradient_norms.append(norm)

    @property
    def last(self) -> MinibatchStatistics:
        """The minibatch appended last."""
        return self._minibatches[-1]

    def check_finite(self) -> None:
        """:raises NonFiniteError: if a loss or a gradient is not finite"""
        if self._minibatches:
            check_finite(self._values() | {"gradient": _read(self._gradient_norms)})

    def summary(self) -> dict[str, float]:
        """SB3's ``train/*`` values by their keys."""
        return summarize(self._values(), self._epoch_start)

    def _values(self) -> dict[str, np.ndarray]:
        columns = {
            name: th.stack(tensors)
            for name, tensors in zip(MinibatchStatistics._fields, zip(*self._minibatches, strict=True), strict=True)
            if tensors[0] is not None
        }
        return dict(zip(columns, _read(list(columns.values())), strict=True))


def _read(tensors: list[th.Tensor]) -> np.ndarray:
    return th.stack(tensors).cpu().numpy().astype(np.float64) if tensors else np.empty(0)


def check_finite(values: Mapping[str, np.ndarray]) -> None:
    """Check what the minibatches measured.

    :param values: a value per minibatch, by the names in :data:`CHECKED`
    :raises NonFiniteError: if one is not finite, naming that of the first minibatch
    """
    wrong = [
        (int(np.argmin(np.isfinite(values[name]))), CHECKED.index(name))
        for name in CHECKED
        if name in values and not np.isfinite(values[name]).all()
    ]
    if wrong:
        minibatch, i = min(wrong)
        quantity = f"{CHECKED[i].replace('_', ' ')} of minibatch {minibatch}"
        raise NonFiniteError(quantity, f"not finite: {values[CHECKED[i]][minibatch]}")


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
