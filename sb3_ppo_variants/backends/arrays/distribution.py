"""Action distributions over arrays: log-probabilities, entropies, divergences and their hand-written gradients.

Each is built from the policy network's raw output, shape ``(batch, ...)``, one row per state. As everywhere in this
package, log-probabilities, entropies and KLs are one number per state, summed over action dimensions, in nats, and a
KL is KL(old || new).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeAlias

import numpy as np

from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.guards.finite import is_finite

# Selects some of the rows of an array.
Index: TypeAlias = slice | np.ndarray


class Distribution(ABC):
    """The action distributions in a batch of states."""

    takes_integers: ClassVar[bool] = False
    sees_latent: ClassVar[bool] = False
    """Whether the distribution is built from the network's output concatenated with the last hidden layer."""

    @classmethod
    def in_steps(cls, noise: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over the arguments of :meth:`sample` in each step, given the noise of a whole rollout."""
        return iter(noise)

    @abstractmethod
    def sample(self, noise: Any) -> tuple[np.ndarray, np.ndarray]:
        """Draw actions, shape ``(batch, dimensions)``. Return them and their log-probabilities, shape ``(batch,)``.

        :param noise: the noise of one step, from :meth:`in_steps`
        :raises NonFiniteError: if the network's output is not finite
        """

    @abstractmethod
    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """Compute log pi(a|s), shape ``(batch,)``, for actions of shape ``(batch, dimensions)``."""

    @abstractmethod
    def entropy(self) -> np.ndarray | None:
        """Compute the entropy, shape ``(batch,)``; ``None`` if it has no closed form and -log pi(a|s) estimates it."""

    @abstractmethod
    def kl_from(self, old: Any) -> np.ndarray:
        """Compute KL(old || self), shape ``(batch,)``, for ``old`` of the same class."""

    @abstractmethod
    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any, d_kl: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        """Compute dL/d(network output) and, if the distribution has a parameter of its own, dL/d(that parameter).

        :param actions: the actions whose log-probability is in L
        :param d_log_prob: dL/d log pi(a|s), shape ``(batch,)``
        :param d_entropy: dL/d entropy, the same for every state
        :param old: the old distributions, if L has a KL
        :param d_kl: dL/d KL(old || self), shape ``(batch,)``; ``None`` if L has no KL
        """

    @abstractmethod
    def parameters(self) -> tuple[np.ndarray, ...]:
        """Return the arrays that define the distributions, one row per state, as in :mod:`sb3_ppo_variants.kl`."""

    @classmethod
    @abstractmethod
    def of_parameters(cls, *parameters: np.ndarray) -> "Distribution":
        """Return the distributions with these :meth:`parameters`."""

    @abstractmethod
    def take(self, rows: Index) -> "Distribution":
        """Return the distributions in some of the states."""


def check_finite(array: np.ndarray) -> None:
    """:raises NonFiniteError: if an array computed from the network's output is not finite"""
    if not is_finite(array):
        raise NonFiniteError("output of the policy network", f"not finite: it led to {array}")
