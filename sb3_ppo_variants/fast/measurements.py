"""What the minibatches of an update measured."""

import numpy as np

from sb3_ppo_variants.base.statistics import check_finite, summarize
from sb3_ppo_variants.fast import objective


class Measurements:
    """Keeps what was measured on each sample and takes means once an epoch: few at a time cost as much as many.

    :param clip_range: the objective's eps, if it clips
    :param ent_coef: coefficient of the entropy loss
    :param vf_coef: coefficient of the value loss
    """

    def __init__(self, clip_range: float | None, ent_coef: float, vf_coef: float):
        self._clip_range = clip_range
        self._ent_coef = ent_coef
        self._vf_coef = vf_coef
        self._epoch: list[tuple[np.ndarray, ...]] = []
        self._means: list[dict[str, np.ndarray]] = []

    def start_epoch(self) -> None:
        """Begin a new epoch."""
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self._epoch:
            self._means.append(self._epoch_means())
            self._epoch.clear()

    def add(self, policy_loss: np.ndarray, value_loss: np.ndarray, entropy: np.ndarray, log_ratio: np.ndarray) -> None:
        """Append one minibatch, arrays of shape ``(batch,)``."""
        self._epoch.append((policy_loss, value_loss, entropy, log_ratio))

    @property
    def last_log_ratio(self) -> np.ndarray:
        """log r(theta) of the minibatch appended last."""
        return self._epoch[-1][-1]

    def _epoch_means(self) -> dict[str, np.ndarray]:
        """A value for each minibatch of the epoch, by the fields of the reference path's statistics."""
        sizes = np.array([len(log_ratio) for *_, log_ratio in self._epoch])
        starts = np.cumsum(sizes) - sizes
        columns = (np.concatenate(column).astype(np.float64) for column in zip(*self._epoch, strict=True))
        policy_loss, value_loss, entropy, log_ratio = columns
        samples = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": -entropy,
            "loss": policy_loss - self._ent_coef * entropy + self._vf_coef * value_loss,
            "approx_kl": objective.approximate_kl(log_ratio),
        }
        if self._clip_range is not None:
            samples["clip_fraction"] = objective.is_clipped(log_ratio, self._clip_range).astype(np.float64)
        return {name: np.add.reduceat(values, starts) / sizes for name, values in samples.items()}

    def check_finite(self) -> None:
        """:raises NonFiniteError: if a loss is not finite"""
        if self._epoch or self._means:
            check_finite(self._values())

    def summary(self) -> dict[str, float]:
        """SB3's ``train/*`` values by their keys."""
        values = self._values()
        return summarize(values, epoch_start=len(values["loss"]) - len(self._means[-1]["loss"]))

    def _values(self) -> dict[str, np.ndarray]:
        self._end_epoch()
        return {name: np.concatenate([epoch[name] for epoch in self._means]) for name in self._means[0]}
