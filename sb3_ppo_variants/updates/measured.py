"""What the minibatches of an update measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.processes import Processes

# What must be finite, causes before effects.
CHECKED = ("policy_loss", "value_loss", "entropy_loss", "loss", "gradient")


@dataclass(frozen=True)
class Measured:
    """What a descent measured.

    :param values: a value per minibatch, of ``policy_loss``, ``value_loss``, ``entropy_loss``, ``loss``,
        ``approx_kl``, ``clip_fraction``, ``gradient`` (its norm), as far as the descent has them
    :param epoch_start: the first minibatch of the last epoch
    """

    values: Mapping[str, np.ndarray]
    epoch_start: int

    def averaged(self, processes: Processes) -> "Measured":
        """The means over processes that measured minibatches of the same size."""
        if processes.size == 1 or not self.values:
            return self
        columns = [th.from_numpy(array.astype(np.float64)) for array in self.values.values()]
        vector = th.cat(columns)
        processes.average(vector)
        means = vector.split([len(column) for column in columns])
        return Measured({name: m.numpy() for name, m in zip(self.values, means, strict=True)}, self.epoch_start)

    def check_finite(self) -> None:
        """:raises NonFiniteError: if one is not finite, naming that of the first minibatch"""
        wrong = [
            (int(np.argmin(np.isfinite(self.values[name]))), order)
            for order, name in enumerate(CHECKED)
            if name in self.values and not np.isfinite(self.values[name]).all()
        ]
        if wrong:
            minibatch, order = min(wrong)
            name = CHECKED[order]
            quantity = f"{name.replace('_', ' ')} of minibatch {minibatch}"
            raise NonFiniteError(quantity, f"not finite: {self.values[name][minibatch]}")


def summary(descents: Sequence[Measured]) -> dict[str, float]:
    """SB3's ``train/*`` values by their names.

    As in SB3, ``train/loss`` is that of the last minibatch, ``train/approx_kl`` is the mean over the last epoch and all
    others are means over the update. Where policy and value are descended separately, ``train/loss`` is the sum of
    their last losses.
    """
    values: dict[str, float] = {}
    for measured in descents:
        values |= {MEANS[name]: float(array.mean()) for name, array in measured.values.items() if name in MEANS}
        if "approx_kl" in measured.values:
            values["approx_kl"] = float(measured.values["approx_kl"][measured.epoch_start :].mean())
    values["loss"] = float(sum(measured.values["loss"][-1] for measured in descents))
    return values


# What is logged as its mean, with SB3's name for it.
MEANS = {
    "entropy_loss": "entropy_loss",
    "policy_loss": "policy_gradient_loss",
    "value_loss": "value_loss",
    "clip_fraction": "clip_fraction",
}
