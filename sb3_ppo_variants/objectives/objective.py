"""The interface of objectives, and checks of what they return."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch as th

from sb3_ppo_variants.errors import ArgumentError

Numbers = TypeVar("Numbers", th.Tensor, np.ndarray)
Self = TypeVar("Self", bound="Objective")


class Batch(Generic[Numbers]):
    """The data of a minibatch that an objective can use: tensors or arrays of shape ``(batch,)``.

    :param ratio: r(theta) = pi(a|s) / pi_old(a|s)
    :param advantages: A, normalised as the model's ``normalize_advantage`` says
    :param kl: KL(old || new) in each state, summed over action dimensions; ``None`` unless the objective ``needs_kl``
    """

    def __init__(self, ratio: Numbers, advantages: Numbers, kl: Numbers | None = None):
        self.ratio: Numbers = ratio
        self.advantages: Numbers = advantages
        self._kl: Numbers | None = kl

    @property
    def kl(self) -> Numbers:
        """KL(old || new) in each state.

        :raises RuntimeError: if the objective does not set ``needs_kl``
        """
        if self._kl is None:
            raise RuntimeError("the objective reads batch.kl, but needs_kl is False: set needs_kl = True in its class")
        return self._kl


class Gradient(NamedTuple):
    """A loss over arrays with its derivatives; all arrays have the shape ``(batch,)``."""

    losses: np.ndarray
    """The loss of each sample; their mean is the loss."""
    d_log_ratio: np.ndarray
    """The derivative of the mean with respect to each log r."""
    d_kl: np.ndarray | None = None
    """The derivative of the mean with respect to each KL; ``None`` if the loss does not depend on the KL."""


class Objective(ABC):
    """A policy objective with its coefficients for one update.

    To write your own, derive from this class, implement :meth:`loss`, and pass an instance to
    :class:`~sb3_ppo_variants.PPOCustom`. Make the class a frozen dataclass, so that its coefficients can be saved and
    do not change during an update.
    """

    needs_kl: ClassVar[bool] = False
    """Whether :meth:`loss` reads ``batch.kl``. If so, the policy's distribution needs a known KL."""
    clip_range: float | None = None
    """eps, if the objective clips r(theta); ``train/clip_fraction`` is computed with it."""

    @abstractmethod
    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        """Compute the negative objective, a scalar."""

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients to log, as ``train/...``, with names that nothing else is logged under."""
        return {}

    def at(self: Self, progress_remaining: float) -> Self:
        """Return the objective for one update. Override this if a coefficient follows a schedule.

        :param progress_remaining: from 1 (the beginning of training) to 0 (its end)
        """
        return self

    def after_update(self: Self, kl: float | None) -> Self:
        """Return the objective for later updates. Override this if a coefficient depends on how far the policy moved.

        :param kl: the mean of KL(old || new) over the rollout; ``None`` if the policy's distribution has no known KL
        """
        return self


class ArrayObjective(Objective):
    """An objective with a hand-written gradient, which the native library can call."""

    @abstractmethod
    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        """Compute the loss and its derivatives. :func:`~sb3_ppo_variants.check_gradient` compares it with autograd."""


def arrays_obstacle(objective: Objective) -> str | None:
    """Return why an objective has no gradient over arrays, as a clause, or ``None`` if it has one."""
    name = type(objective).__name__
    for cls in type(objective).__mro__:
        members = cls.__dict__
        if "gradient" in members and "gradient" not in getattr(cls, "__abstractmethods__", ()):
            return None
        if "loss" in members:
            # This class overrides loss only, so the gradient that it inherits belongs to another loss.
            return f"{name} has a loss without a gradient over arrays"
    return f"{name} has no gradient over arrays"


def loss_of(objective: Objective, batch: Batch[th.Tensor]) -> th.Tensor:
    """Return the loss of an objective.

    :raises ArgumentError: if it is not a scalar tensor
    """
    loss = objective.loss(batch)
    if not isinstance(loss, th.Tensor) or loss.shape != ():
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, th.Tensor) else repr(loss)
        raise ArgumentError(
            f"{type(objective).__name__}.loss returned {found}; allowed: a scalar tensor, such as the mean over the "
            "samples"
        )
    return loss


def gradient_of(objective: ArrayObjective, batch: Batch[np.ndarray]) -> Gradient:
    """Return the losses and the gradient of an objective.

    :raises ArgumentError: if it returns anything but a ``Gradient``, if what it contains is not an array of shape
        ``(batch,)``, or if there is a ``d_kl`` although the objective does not need the KL
    """
    returned, name = objective.gradient(batch), type(objective).__name__
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise ArgumentError(f"{name}.gradient returned {returned!r}; allowed: a Gradient")
    found = Gradient(*returned)
    for field, array in zip(Gradient._fields, found, strict=True):
        if field == "d_kl" and array is None:
            continue
        if not isinstance(array, np.ndarray) or array.shape != batch.ratio.shape:
            which = f"of shape {array.shape}" if isinstance(array, np.ndarray | np.generic) else f"= {array!r}"
            raise ArgumentError(
                f"{name}.gradient returned {field} {which}; allowed: an array of shape {batch.ratio.shape}, one number "
                "per sample"
            )
    if found.d_kl is not None and not objective.needs_kl:
        raise ArgumentError(
            f"{name}.gradient returned a d_kl, but needs_kl is False: set needs_kl = True in its class, or return None"
        )
    return found
