"""Statistics measured on the minibatches of one descent."""

import numpy as np

from sb3_ppo_variants.losses import approximate_kls, is_clipped
from sb3_ppo_variants.updates.measured import Measured
from sb3_ppo_variants.updates.plan import UpdatePlan


class Measurements:
    """Stores values per sample and averages them once per epoch, which costs no more than averaging one minibatch.

    :param plan: provides the clip range and the coefficients of the loss
    """

    def __init__(self, plan: UpdatePlan):
        self._clip_range = plan.objective.clip_range
        self._ent_coef, self._vf_coef = float(plan.ent_coef), float(plan.vf_coef)
        self._epoch: list[dict[str, np.ndarray]] = []
        self._means: list[dict[str, np.ndarray]] = []

    def start_epoch(self) -> None:
        """Begin a new epoch."""
        if self._epoch:
            self._means.append(self._epoch_means())
            self._epoch.clear()

    def add(self, samples: dict[str, np.ndarray]) -> None:
        """Append one minibatch.

        :param samples: ``policy_loss``, ``entropy`` and ``log_ratio``, or ``value_loss``, or all, shape ``(batch,)``
        """
        self._epoch.append(samples)

    @property
    def last_log_ratio(self) -> np.ndarray:
        """log r(theta) of the last minibatch."""
        return self._epoch[-1]["log_ratio"]

    def _epoch_means(self) -> dict[str, np.ndarray]:
        """Return one value per minibatch of the epoch."""
        sizes = np.array([len(next(iter(minibatch.values()))) for minibatch in self._epoch])
        starts = np.cumsum(sizes) - sizes
        columns = {
            name: np.concatenate([minibatch[name] for minibatch in self._epoch]).astype(np.float64)
            for name in self._epoch[0]
        }
        return {name: np.add.reduceat(values, starts) / sizes for name, values in self._scalars(columns).items()}

    def _scalars(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the logged quantities, one value per sample."""
        scalars = {name: column for name, column in columns.items() if name in ("policy_loss", "value_loss")}
        loss = np.zeros(1)
        if "policy_loss" in columns:
            log_ratio = columns["log_ratio"]
            scalars["entropy_loss"] = -columns["entropy"]
            scalars["approx_kl"] = approximate_kls(log_ratio)
            if self._clip_range is not None:
                scalars["clip_fraction"] = is_clipped(log_ratio, self._clip_range).astype(np.float64)
            loss = columns["policy_loss"] - self._ent_coef * columns["entropy"]
        if "value_loss" in columns:
            loss = loss + self._vf_coef * columns["value_loss"]
        return {**scalars, "loss": loss}

    def measured(self) -> Measured:
        """Return the statistics of all minibatches so far."""
        self.start_epoch()
        if not self._means:
            return Measured({}, 0)
        values = {name: np.concatenate([epoch[name] for epoch in self._means]) for name in self._means[0]}
        return Measured(values, epoch_start=len(values["loss"]) - len(self._means[-1]["loss"]))
