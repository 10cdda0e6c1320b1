"""Action distributions over arrays: log-probabilities, entropies, divergences and their gradients, written out.

Each is made of the policy network's raw output, shape ``(batch, ...)``, one row per state. As everywhere in this
package a log-probability, an entropy and a KL are one number per state, summed over action dimensions, in nats, and a
KL is KL(old || new).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeAlias

import numpy as np

from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.guards.finite import is_finite

# Some of the rows of an array.
Index: TypeAlias = slice | np.ndarray


class Distribution(ABC):
    """A distribution of actions in each of a batch of states."""

    takes_integers: ClassVar[bool] = False
    sees_latent: ClassVar[bool] = False
    """Whether its output has the last hidden layer beside that of the network."""

    @classmethod
    def in_steps(cls, noise: Iterable[Any]) -> Iterator[Any]:
        """What :meth:`sample` takes in each step, of the noise of a whole rollout."""
        return iter(noise)

    @abstractmethod
    def sample(self, noise: Any) -> tuple[np.ndarray, np.ndarray]:
        """Actions, shape ``(batch, dimensions)``, and their log-probabilities, shape ``(batch,)``.

        :param noise: that of a step, from :meth:`in_steps`
        :raises NonFiniteError: if the network's output is not finite
        """

    @abstractmethod
    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """log pi(a|s), shape ``(batch,)``, of actions of shape ``(batch, dimensions)``."""

    @abstractmethod
    def entropy(self) -> np.ndarray | None:
        """Shape ``(batch,)``; ``None`` where it has no closed form, and is estimated by -log pi(a|s)."""

    @abstractmethod
    def kl_from(self, old: Any) -> np.ndarray:
        """KL(old || self), shape ``(batch,)``, for ``old`` of the same class."""

    @abstractmethod
    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any, d_kl: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        """dL/d(network output) and, where the distribution has a parameter of its own, dL/d(it).

        :param actions: the actions whose log-probability is in L
        :param d_log_prob: dL/d log pi(a|s), shape ``(batch,)``
        :param d_entropy: dL/d entropy, the same for every state
        :param old: the old distributions, if L has a KL
        :param d_kl: dL/d KL(old || self), shape ``(batch,)``; ``None`` if L has no KL
        """

    @abstractmethod
    def parameters(self) -> tuple[np.ndarray, ...]:
        """The arrays that define the distributions, a row per state, as :mod:`sb3_ppo_variants.kl` has them."""

    @classmethod
    @abstractmethod
    def of_parameters(cls, *parameters: np.ndarray) -> "Distribution":
        """The distributions that have these :meth:`parameters`."""

    @abstractmethod
    def take(self, rows: Index) -> "Distribution":
        """The distributions in some of the states."""


def check_finite(array: np.ndarray) -> None:
    """:raises NonFiniteError: if what a network's output led to is not finite"""
    if not is_finite(array):
        raise NonFiniteError("output of the policy network", f"not finite: it led to {array}")
