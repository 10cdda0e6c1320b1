"""Statistics measured on the minibatches of an update."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.processes import Processes

# Statistics that must be finite, causes before effects.
CHECKED = ("policy_loss", "value_loss", "entropy_loss", "loss", "gradient")


@dataclass(frozen=True)
class Measured:
    """Statistics measured on the minibatches of one descent.

    :param values: one value per minibatch of each of ``policy_loss``, ``value_loss``, ``entropy_loss``, ``loss``,
        ``approx_kl``, ``clip_fraction`` and ``gradient`` (its norm) that the descent computes
    :param epoch_start: index of the first minibatch of the last epoch
    """

    values: Mapping[str, np.ndarray]
    epoch_start: int

    def averaged(self, processes: Processes) -> "Measured":
        """Return the means over all processes, whose minibatches have the same size."""
        if processes.size == 1 or not self.values:
            return self
        columns = [th.from_numpy(array.astype(np.float64)) for array in self.values.values()]
        vector = th.cat(columns)
        processes.average(vector)
        means = vector.split([len(column) for column in columns])
        return Measured({name: m.numpy() for name, m in zip(self.values, means, strict=True)}, self.epoch_start)

    def check_finite(self) -> None:
        """Check that all losses and gradients are finite.

        :raises NonFiniteError: if one is not finite, naming the first minibatch in which that is so
        """
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
    """Return SB3's ``train/*`` values by name.

    As in SB3, ``train/loss`` is the loss of the last minibatch, ``train/approx_kl`` is the mean over the last epoch,
    and all others are means over the update. If policy and value have separate descents, ``train/loss`` is the sum of
    their last losses.
    """
    values: dict[str, float] = {}
    for measured in descents:
        values |= {MEANS[name]: float(array.mean()) for name, array in measured.values.items() if name in MEANS}
        if "approx_kl" in measured.values:
            values["approx_kl"] = float(measured.values["approx_kl"][measured.epoch_start :].mean())
    values["loss"] = float(sum(measured.values["loss"][-1] for measured in descents))
    return values


# Statistics that are logged as means over the update, with SB3's names for them.
MEANS = {
    "entropy_loss": "entropy_loss",
    "policy_loss": "policy_gradient_loss",
    "value_loss": "value_loss",
    "clip_fraction": "clip_fraction",
}
# The names of everything that an update logs, except the coefficients of the objective.
LOGGED = frozenset({
    *MEANS.values(), "approx_kl", "clip_range_vf", "explained_variance", "kl", "learning_rate", "loss", "n_updates",
    "policy_epochs", "std", "value_epochs", "value_learning_rate",
})  # fmt: skip
