"""Action distributions over arrays: log-probabilities, entropies, divergences and their gradients, written out.

Each is made of the policy network's raw output, shape ``(batch, ...)``, one row per state. As everywhere in this
package a log-probability, an entropy and a KL are one number per state, summed over action dimensions, in nats, and a
KL is KL(old || new).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch as th

from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.guards.finite import is_finite

HALF_LOG_2_PI = 0.5 * float(np.log(2 * np.pi))


class Distribution(ABC):
    """A distribution of actions in each of a batch of states."""

    takes_integers: ClassVar[bool] = False

    @staticmethod
    @abstractmethod
    def noise(shape: tuple[int, int, int], dtype: th.dtype) -> Iterable[Any]:
        """What :meth:`sample` makes actions of, step by step, from torch's generator.

        :param shape: steps, states in a step, outputs of the network
        """

    @abstractmethod
    def sample(self, noise: Any) -> tuple[np.ndarray, np.ndarray]:
        """Actions, shape ``(batch, dimensions)``, and their log-probabilities, shape ``(batch,)``.

        :param noise: that of a step from :meth:`noise`
        :raises NonFiniteError: if the network's output is not finite
        """

    @abstractmethod
    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """log pi(a|s), shape ``(batch,)``, of actions of shape ``(batch, dimensions)``."""

    @abstractmethod
    def entropy(self) -> np.ndarray:
        """Shape ``(batch,)``."""

    @abstractmethod
    def kl_from(self, old: Any) -> np.ndarray:
        """KL(old || self), shape ``(batch,)``, for ``old`` of the same class."""

    @abstractmethod
    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any = None, d_kl: float = 0.0
    ) -> tuple[np.ndarray, ...]:
        """dL/d(network output) and, where the distribution has a parameter of its own, dL/d(it).

        :param actions: the actions whose log-probability is in L
        :param d_log_prob: dL/d log pi(a|s), shape ``(batch,)``
        :param d_entropy: dL/d entropy, the same for every state
        :param old: the old distributions, if L has a KL
        :param d_kl: dL/d KL, the same for every state
        """

    @abstractmethod
    def take(self, rows: Any) -> "Distribution":
        """The distributions in some of the states."""


def _check_finite(array: np.ndarray) -> None:
    if not is_finite(array):
        raise NonFiniteError("output of the policy network", f"not finite: it led to {array}")


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
    def noise(shape: tuple[int, int, int], dtype: th.dtype) -> Iterable[Any]:
        """Standard normal numbers z, and -1/2 z^2 summed over dimensions."""
        z = th.randn(shape, dtype=dtype).numpy()
        return zip(z, -0.5 * np.add.reduce(z * z, axis=2), strict=True)

    def sample(self, noise: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """mean + std * z."""
        z, exponent = noise
        actions = self._std * z
        actions += self._mean
        _check_finite(actions)
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
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any = None, d_kl: float = 0.0
    ) -> tuple[np.ndarray, ...]:
        """dL/d(mean) and dL/d(log std)."""
        z = self._standardized(actions)
        d_mean = z * d_log_prob[:, None]
        d_log_std = np.add.reduce(d_mean * z, axis=0)
        d_log_std += len(z) * d_entropy - float(np.add.reduce(d_log_prob))
        if old is not None:
            shift, variance_ratio = self._kl_terms(old)
            d_log_std += d_kl * (len(z) * (1.0 - variance_ratio) - np.add.reduce(shift * shift, axis=0))
            d_mean += d_kl * shift
        d_mean /= self._std
        return d_mean, d_log_std

    def take(self, rows: Any) -> "DiagGaussian":
        """The distributions in some of the states."""
        return DiagGaussian(self._mean[rows], self._log_std)


class Categorical(Distribution):
    """One of several categories; the network's outputs are the logits.

    :param logits: unnormalised, shape ``(batch, categories)``
    """

    takes_integers = True

    def __init__(self, logits: np.ndarray):
        self._log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        self._probs = np.exp(self._log_probs)

    @staticmethod
    def noise(shape: tuple[int, int, int], dtype: th.dtype) -> Iterable[Any]:
        """Standard Gumbel numbers."""
        return -th.empty(shape, dtype=dtype).exponential_().log_().numpy()

    def sample(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The largest of log-probabilities plus Gumbel noise, which is distributed as the categories are."""
        actions = (self._log_probs + noise).argmax(axis=1)[:, None]
        log_prob = self.log_prob(actions)
        _check_finite(log_prob)
        return actions, log_prob

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """The normalised logit of the category."""
        return self._log_probs[np.arange(len(actions)), actions[:, 0]]

    def entropy(self) -> np.ndarray:
        """-p log p, summed over categories."""
        return -np.add.reduce(self._probs * self._log_probs, axis=1)

    def kl_from(self, old: "Categorical") -> np.ndarray:
        """p_old (log p_old - log p), summed over categories."""
        return np.add.reduce(old._probs * (old._log_probs - self._log_probs), axis=1)

    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any = None, d_kl: float = 0.0
    ) -> tuple[np.ndarray, ...]:
        """dL/d(logits)."""
        d = self._probs * -d_log_prob[:, None]
        d[np.arange(len(d)), actions[:, 0]] += d_log_prob
        if d_entropy != 0.0:
            d -= d_entropy * self._probs * (self._log_probs + self.entropy()[:, None])
        if old is not None:
            d += d_kl * (self._probs - old._probs)
        return (d,)

    def take(self, rows: Any) -> "Categorical":
        """The distributions in some of the states."""
        taken = object.__new__(Categorical)
        taken._log_probs, taken._probs = self._log_probs[rows], self._probs[rows]
        return taken


class MultiCategorical(Distribution):
    """Independent categorical distributions; the network's outputs are their logits, side by side.

    :param parts: the distributions
    """

    takes_integers = True
    noise = Categorical.noise

    def __init__(self, parts: Sequence[Categorical]):
        self._parts = parts

    @classmethod
    def of(cls, logits: np.ndarray, sizes: Sequence[int]) -> "MultiCategorical":
        """The distributions of logits of shape ``(batch, sum of sizes)``, with so many categories each."""
        return cls([Categorical(part) for part in _split(logits, sizes)])

    def sample(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One category of each."""
        sizes = [part._probs.shape[1] for part in self._parts]
        pairs = [part.sample(own) for part, own in zip(self._parts, _split(noise, sizes), strict=True)]
        return np.concatenate([pair[0] for pair in pairs], axis=1), _sum(pair[1] for pair in pairs)

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """The sum of those of the parts."""
        return _sum(part.log_prob(actions[:, [i]]) for i, part in enumerate(self._parts))

    def entropy(self) -> np.ndarray:
        """The sum of those of the parts."""
        return _sum(part.entropy() for part in self._parts)

    def kl_from(self, old: "MultiCategorical") -> np.ndarray:
        """The sum of those of the parts."""
        pairs = zip(self._parts, old._parts, strict=True)
        return _sum(part.kl_from(old_part) for part, old_part in pairs)

    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any = None, d_kl: float = 0.0
    ) -> tuple[np.ndarray, ...]:
        """dL/d(logits)."""
        old_parts = [None] * len(self._parts) if old is None else old._parts
        gradients = [
            part.gradient(actions[:, [i]], d_log_prob, d_entropy, old_part, d_kl)[0]
            for i, (part, old_part) in enumerate(zip(self._parts, old_parts, strict=True))
        ]
        return (np.concatenate(gradients, axis=1),)

    def take(self, rows: Any) -> "MultiCategorical":
        """The distributions in some of the states."""
        return MultiCategorical([part.take(rows) for part in self._parts])


def _sum(terms: Iterable[np.ndarray]) -> np.ndarray:
    return reduce(np.add, terms)


def _split(array: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    return [array[:, end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


class Bernoulli(Distribution):
    """Independent coins; the network's outputs are their logits.

    :param logits: shape ``(batch, dimensions)``
    """

    def __init__(self, logits: np.ndarray):
        self._logits = logits
        # log(1 + exp(l)) without overflow; its derivative is the probability.
        self._softplus = np.logaddexp(logits.dtype.type(0), logits)
        self._probs = np.exp(logits - self._softplus)

    @staticmethod
    def noise(shape: tuple[int, int, int], dtype: th.dtype) -> Iterable[Any]:
        """Uniform numbers in [0, 1)."""
        return th.rand(shape, dtype=dtype).numpy()

    def sample(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """1 where the noise is less than the probability, else 0."""
        actions = (noise < self._probs).astype(self._logits.dtype)
        log_prob = self.log_prob(actions)
        _check_finite(log_prob)
        return actions, log_prob

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """a l - log(1 + exp(l)), summed."""
        return np.add.reduce(actions * self._logits - self._softplus, axis=1)

    def entropy(self) -> np.ndarray:
        """log(1 + exp(l)) - p l, summed."""
        return np.add.reduce(self._softplus - self._probs * self._logits, axis=1)

    def kl_from(self, old: "Bernoulli") -> np.ndarray:
        """p_old (l_old - l) + log(1 + exp(l)) - log(1 + exp(l_old)), summed."""
        kl = old._probs * (old._logits - self._logits) + self._softplus - old._softplus
        return np.add.reduce(kl, axis=1)

    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any = None, d_kl: float = 0.0
    ) -> tuple[np.ndarray, ...]:
        """dL/d(logits)."""
        d = (actions - self._probs) * d_log_prob[:, None]
        if d_entropy != 0.0:
            d -= d_entropy * self._logits * self._probs * (1.0 - self._probs)
        if old is not None:
            d += d_kl * (self._probs - old._probs)
        return (d,)

    def take(self, rows: Any) -> "Bernoulli":
        """The distributions in some of the states."""
        return Bernoulli(self._logits[rows])
