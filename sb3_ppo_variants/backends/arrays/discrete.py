"""Categorical and Bernoulli distributions over arrays."""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np
import torch as th

from sb3_ppo_variants.backends.arrays.distribution import Distribution, Index, check_finite


class Categorical(Distribution):
    """Categorical distributions; the network's outputs are the logits.

    :param logits: unnormalised, shape ``(batch, categories)``
    """

    takes_integers = True

    def __init__(self, logits: np.ndarray):
        self._log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        self._probs = np.exp(self._log_probs)

    @staticmethod
    def noise(shape: tuple[int, int, int], dtype: th.dtype) -> np.ndarray:
        """Draw standard Gumbel numbers."""
        return -th.empty(shape, dtype=dtype).exponential_().log_().numpy()

    def sample(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw the category with the largest log-probability plus Gumbel noise, which follows the distribution."""
        actions = (self._log_probs + noise).argmax(axis=1)[:, None]
        log_prob = self.log_prob(actions)
        check_finite(log_prob)
        return actions, log_prob

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Return the normalised logit of the category."""
        return self._log_probs[np.arange(len(actions)), actions[:, 0]]

    def entropy(self) -> np.ndarray:
        """-p log p, summed over categories."""
        return -np.add.reduce(self._probs * self._log_probs, axis=1)

    def kl_from(self, old: "Categorical") -> np.ndarray:
        """p_old (log p_old - log p), summed over categories."""
        # The sum of p - p_old is 0, except for errors in normalising large logits. Adding it makes those errors
        # second-order.
        kl = old._probs * (old._log_probs - self._log_probs) + (self._probs - old._probs)
        return np.add.reduce(kl, axis=1)

    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any, d_kl: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        """dL/d(logits)."""
        d = self._probs * -d_log_prob[:, None]
        d[np.arange(len(d)), actions[:, 0]] += d_log_prob
        if d_entropy != 0.0:
            d -= d_entropy * self._probs * (self._log_probs + self.entropy()[:, None])
        if d_kl is not None:
            d += d_kl[:, None] * (self._probs - old._probs)
        return (d,)

    def parameters(self) -> tuple[np.ndarray, ...]:
        """Return the normalised logits."""
        return (self._log_probs,)

    @classmethod
    def of_parameters(cls, *parameters: np.ndarray) -> "Categorical":
        """Return the distributions with these logits."""
        return cls(*parameters)

    def take(self, rows: Index) -> "Categorical":
        """Return the distributions in some of the states."""
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
        """Return the distributions for logits of shape ``(batch, sum of sizes)``; a size is a number of categories."""
        return cls([Categorical(part) for part in _split(logits, sizes)])

    def sample(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw one category from each part."""
        sizes = [part._probs.shape[1] for part in self._parts]
        pairs = [part.sample(own) for part, own in zip(self._parts, _split(noise, sizes), strict=True)]
        return np.concatenate([pair[0] for pair in pairs], axis=1), _sum(pair[1] for pair in pairs)

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Return the sum of the parts' log-probabilities."""
        return _sum(part.log_prob(actions[:, [i]]) for i, part in enumerate(self._parts))

    def entropy(self) -> np.ndarray:
        """Return the sum of the parts' entropies."""
        return _sum(part.entropy() for part in self._parts)

    def kl_from(self, old: "MultiCategorical") -> np.ndarray:
        """Return the sum of the parts' divergences."""
        pairs = zip(self._parts, old._parts, strict=True)
        return _sum(part.kl_from(old_part) for part, old_part in pairs)

    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any, d_kl: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        """dL/d(logits)."""
        old_parts = [None] * len(self._parts) if d_kl is None else old._parts
        gradients = [
            part.gradient(actions[:, [i]], d_log_prob, d_entropy, old_part, d_kl)[0]
            for i, (part, old_part) in enumerate(zip(self._parts, old_parts, strict=True))
        ]
        return (np.concatenate(gradients, axis=1),)

    def parameters(self) -> tuple[np.ndarray, ...]:
        """Return the normalised logits of each part."""
        return tuple(part._log_probs for part in self._parts)

    @classmethod
    def of_parameters(cls, *parameters: np.ndarray) -> "MultiCategorical":
        """Return the distributions with these logits, one array per part."""
        return cls([Categorical(logits) for logits in parameters])

    def take(self, rows: Index) -> "MultiCategorical":
        """Return the distributions in some of the states."""
        return MultiCategorical([part.take(rows) for part in self._parts])


def _sum(terms: Iterable[np.ndarray]) -> np.ndarray:
    return reduce(np.add, terms)


def _split(array: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    return [array[:, end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


class Bernoulli(Distribution):
    """Independent Bernoulli distributions; the network's outputs are their logits.

    :param logits: shape ``(batch, dimensions)``
    """

    def __init__(self, logits: np.ndarray):
        self._logits = logits
        # log(1 + exp(l)) without overflow; its derivative is the probability.
        self._softplus = np.logaddexp(logits.dtype.type(0), logits)
        self._probs = np.exp(logits - self._softplus)

    @staticmethod
    def noise(shape: tuple[int, int, int], dtype: th.dtype) -> np.ndarray:
        """Draw uniform numbers in [0, 1)."""
        return th.rand(shape, dtype=dtype).numpy()

    def sample(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw 1 where the noise is less than the probability, else 0."""
        actions = (noise < self._probs).astype(self._logits.dtype)
        log_prob = self.log_prob(actions)
        check_finite(log_prob)
        return actions, log_prob

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """a l - log(1 + exp(l)), summed."""
        return np.add.reduce(actions * self._logits - self._softplus, axis=1)

    def entropy(self) -> np.ndarray:
        """log(1 + exp(l)) - p l, summed."""
        return np.add.reduce(self._softplus - self._probs * self._logits, axis=1)

    def kl_from(self, old: "Bernoulli") -> np.ndarray:
        """p_old (log p_old - log p) + (1 - p_old) (log(1 - p_old) - log(1 - p)), summed."""
        not_1, old_not_1 = self._softplus, old._softplus  # -log(1 - p)
        not_0, old_not_0 = (_softplus(-each._logits) for each in (self, old))  # -log p
        kl = np.exp(-old_not_0) * (not_0 - old_not_0) + np.exp(-old_not_1) * (not_1 - old_not_1)
        return np.add.reduce(kl, axis=1)

    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any, d_kl: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        """dL/d(logits)."""
        d = (actions - self._probs) * d_log_prob[:, None]
        if d_entropy != 0.0:
            d -= d_entropy * self._logits * self._probs * (1.0 - self._probs)
        if d_kl is not None:
            d += d_kl[:, None] * (self._probs - old._probs)
        return (d,)

    def parameters(self) -> tuple[np.ndarray, ...]:
        """Return the logits."""
        return (self._logits,)

    @classmethod
    def of_parameters(cls, *parameters: np.ndarray) -> "Bernoulli":
        """Return the distributions with these logits."""
        return cls(*parameters)

    def take(self, rows: Index) -> "Bernoulli":
        """Return the distributions in some of the states."""
        return Bernoulli(self._logits[rows])


def _softplus(logits: np.ndarray) -> np.ndarray:
    # Faster than np.logaddexp for large arrays.
    return np.maximum(logits, 0) + np.log1p(np.exp(-np.abs(logits)))
