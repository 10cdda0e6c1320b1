"""Normal distributions over arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch as th

from sb3_ppo_variants.backends.arrays.distribution import Distribution, Index, check_finite

HALF_LOG_2_PI = 0.5 * float(np.log(2 * np.pi))


class DiagGaussian(Distribution):
    """Independent normal distributions; the network's output is their mean.

    :param mean: shape ``(batch, dimensions)``
    :param log_std: shape ``(dimensions,)``
    """

    def __init__(self, mean: np.ndarray, log_std: np.ndarray):
        self._mean = mean
        self._log_std = log_std
        self._std = np.exp(log_std)
        self._log_scale = float(np.add.reduce(log_std)) + len(log_std) * HALF_LOG_2_PI

    @staticmethod
    def noise(shape: tuple[int, int, int], dtype: th.dtype) -> np.ndarray:
        """Draw standard normal numbers."""
        return th.randn(shape, dtype=dtype).numpy()

    @classmethod
    def in_steps(cls, noise: Any) -> Iterator[Any]:
        """Yield the numbers z of each step, and -1/2 z^2 summed over dimensions."""
        # A generator, so that nothing is computed if the native library draws the actions.
        yield from zip(noise, -0.5 * np.add.reduce(noise * noise, axis=2), strict=True)

    def sample(self, noise: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """mean + std * z."""
        z, exponent = noise
        actions = self._std * z
        actions += self._mean
        check_finite(actions)
        return actions, exponent - self._log_scale

    def _standardized(self, actions: np.ndarray) -> np.ndarray:
        z = actions - self._mean
        z /= self._std
        return z

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """-1/2 z^2 - log std - 1/2 log(2 pi), summed, with z = (a - mean) / std."""
        z = self._standardized(actions)
        return -0.5 * np.add.reduce(z * z, axis=1) - self._log_scale

    def entropy(self) -> np.ndarray:
        """1/2 + 1/2 log(2 pi) + log std, summed."""
        return np.full(len(self._mean), self._log_scale + 0.5 * len(self._log_std), self._mean.dtype)

    def _kl_terms(self, old: "DiagGaussian") -> tuple[np.ndarray, np.ndarray]:
        ratio = old._std / self._std
        return (self._mean - old._mean) / self._std, ratio * ratio

    def kl_from(self, old: "DiagGaussian") -> np.ndarray:
        """1/2 (shift^2 + v - 1 - log v), summed; shift of the mean in units of std, v ratio of old to new variance."""
        shift, variance_ratio = self._kl_terms(old)
        constant = float(np.add.reduce(variance_ratio - 1.0 - np.log(variance_ratio)))
        return 0.5 * (np.add.reduce(shift * shift, axis=1) + constant)

    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any, d_kl: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        """dL/d(mean) and dL/d(log std)."""
        z = self._standardized(actions)
        d_mean = z * d_log_prob[:, None]
        d_log_std = np.add.reduce(d_mean * z, axis=0)
        d_log_std += len(z) * d_entropy - float(np.add.reduce(d_log_prob))
        if d_kl is not None:
            shift, variance_ratio = self._kl_terms(old)
            d_shift = d_kl[:, None] * shift
            d_log_std += float(np.add.reduce(d_kl)) * (1.0 - variance_ratio) - np.add.reduce(d_shift * shift, axis=0)
            d_mean += d_shift
        d_mean /= self._std
        return d_mean, d_log_std

    def parameters(self) -> tuple[np.ndarray, ...]:
        """Return the means and the standard deviations."""
        return self._mean, np.tile(self._std, (len(self._mean), 1))

    @classmethod
    def of_parameters(cls, *parameters: np.ndarray) -> "DiagGaussian":
        """Return the distributions of a policy that has the same standard deviation in every state."""
        mean, std = parameters
        return cls(mean, np.log(std[0]))

    def take(self, rows: Index) -> "DiagGaussian":
        """Return the distributions in some of the states."""
        return DiagGaussian(self._mean[rows], self._log_std)
