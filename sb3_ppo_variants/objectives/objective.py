"""The interface of objectives, and checks of what they return."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeGuard, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.distributions import Distribution

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.layout import map_parts
from sb3_ppo_variants.stops import EarlyStop

TensorOrArray = TypeVar("TensorOrArray", th.Tensor, np.ndarray)
Self = TypeVar("Self", bound="Objective")


def unknown(field: str) -> None:
    """Stand for the source of a batch that has only what it was given."""


class Batch(Generic[TensorOrArray]):
    """What is known about a minibatch, as tensors or as arrays with one row per sample.

    Unless said otherwise, the shape is ``(batch,)``. A field is computed when an objective first reads it, so only what
    is read costs time. The gradient of a loss is taken through all fields that depend on the current policy.

    :param ratio: r(theta)
    :param advantages: A
    :param kl: KL(old || new)
    :param source: computes a field by its name, or returns ``None`` if it does not know it; only what is not given
        otherwise is asked for
    :param others: other fields by name
    """

    ratio: TensorOrArray
    """r(theta) = pi(a|s) / pi_old(a|s)."""
    log_ratio: TensorOrArray
    """log r(theta)."""
    log_prob: TensorOrArray
    """log pi(a|s)."""
    old_log_prob: TensorOrArray
    """log pi_old(a|s)."""
    advantages: TensorOrArray
    """A, normalised as the model's ``normalize_advantage`` says."""
    kl: TensorOrArray
    """KL(old || new) in each state, summed over action dimensions. The objective must set ``needs_kl``."""
    reverse_kl: TensorOrArray
    """KL(new || old) in each state, likewise."""
    jensen_shannon: TensorOrArray
    """The Jensen-Shannon divergence of the old and the new policy in each state, likewise; not for arrays."""
    parameters: tuple[TensorOrArray, ...]
    """The parameters of the distributions as in :mod:`sb3_ppo_variants.kl`, shapes ``(batch, ...)``, likewise; not for
    arrays."""
    old_parameters: tuple[TensorOrArray, ...]
    """Those of the old policy, likewise, also for arrays."""
    entropy: TensorOrArray
    """The entropy of pi in each state; where it has no closed form, -log pi(a|s) estimates it."""
    old_values: TensorOrArray
    """The values that were estimated during the rollout."""
    returns: TensorOrArray
    """The TD(lambda) targets of the value function."""
    observations: Any
    """Shape ``(batch, ...)``, or a dict of these."""
    actions: TensorOrArray
    """As the rollout buffer has them, shape ``(batch, action_dim)``."""
    rows: TensorOrArray
    """The index of each sample in the rollout, which has one environment after the other."""
    episodes: TensorOrArray
    """A number for each episode, or part of one, in the rollout; its samples share it."""

    def __init__(
        self,
        ratio: TensorOrArray | None = None,
        advantages: TensorOrArray | None = None,
        kl: TensorOrArray | None = None,
        *,
        source: Callable[[str], object] = unknown,
        **others: object,
    ):
        self._source: Callable[[str], Any] = source
        for name, value in (("ratio", ratio), ("advantages", advantages), ("kl", kl), *others.items()):
            if name not in FIELDS:
                raise TypeError(f"a batch has no {name!r}; its fields are {', '.join(sorted(FIELDS))}")
            if value is not None:
                self.__dict__[name] = value

    if not TYPE_CHECKING:  # The annotations above say what there is.

        def __getattr__(self, name):
            """Find a field. Python calls this only when the field is first read."""
            if name not in FIELDS:
                raise AttributeError(f"a batch has no {name!r}; its fields are {', '.join(sorted(FIELDS))}")
            value = self._find(name)
            if value is None:
                value = self.__dict__[name] = self._derive(name)
            return value

    def renyi(self, order: float) -> TensorOrArray:
        """Compute the Renyi divergence D(old || new) of an order in each state, likewise; not for arrays."""
        of_order: Callable[[float], TensorOrArray] = self._source("renyi") or self._refuse("renyi")
        return of_order(order)

    def over_rollout(self, compute: Callable[["Batch[np.ndarray]"], np.ndarray]) -> TensorOrArray:
        """Compute something for the whole rollout, only once per update, and return it for the samples of this batch.

        A batch that has no rollout, such as one that was made by hand, stands for the rollout itself.

        :param compute: a method or function that takes a batch with all samples of the rollout, and returns an array
            with one row per sample. The batch has what does not depend on the current policy, but no advantages. A
            lambda is another function each time, and is computed for each batch
        """
        of_samples: Callable[[Callable[..., np.ndarray]], TensorOrArray] | None = self._source("over_rollout")
        if of_samples is not None:
            return of_samples(compute)
        found = compute(Batch(source=lambda name: map_parts(_as_array, getattr(self, name))))
        return found if isinstance(self.advantages, np.ndarray) else th.from_numpy(found).to(self.advantages.device)

    def _find(self, name: str) -> object:
        if name not in self.__dict__:
            value = self._source(name)
            if value is None:
                return None
            self.__dict__[name] = value
        return self.__dict__[name]

    def _derive(self, name: str) -> object:
        """Compute a field from others."""
        if name == "ratio" and self._find("log_ratio") is not None:
            return np.exp(self.log_ratio) if isinstance(self.log_ratio, np.ndarray) else self.log_ratio.exp()
        if name == "log_ratio" and self._find("ratio") is not None:
            return np.log(self.ratio) if isinstance(self.ratio, np.ndarray) else self.ratio.log()
        if name == "log_prob" and self._find("old_log_prob") is not None:
            return self.old_log_prob + self.log_ratio
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        """:raises RuntimeError: always, with the reason why the field is not known"""
        reason = f"the objective reads batch.{name}, which this batch does not have"
        if name in OF_DISTRIBUTIONS:
            reason += (
                ": set needs_kl = True in its class. Then loss() has all fields of the distributions, gradient() has "
                "kl, reverse_kl and old_parameters, and a function for over_rollout() has old_parameters"
            )
        raise RuntimeError(reason)


def _as_array(value: object) -> object:
    return value.detach().cpu().numpy() if isinstance(value, th.Tensor) else value


FIELDS = frozenset({*Batch.__annotations__, "renyi"})
# What is known only of distributions with a known KL.
OF_DISTRIBUTIONS = frozenset({"kl", "reverse_kl", "jensen_shannon", "renyi", "parameters", "old_parameters"})


class Gradient(NamedTuple):
    """A loss over arrays with its derivatives; all arrays have the shape ``(batch,)``.

    ``None`` stands for a loss that does not depend on a quantity.
    """

    losses: np.ndarray
    """The loss of each sample; their mean is the loss."""
    d_log_ratio: np.ndarray
    """The derivative of the mean with respect to each log r."""
    d_kl: np.ndarray | None = None
    """The derivative with respect to each KL(old || new)."""
    d_reverse_kl: np.ndarray | None = None
    """The derivative with respect to each KL(new || old)."""
    d_entropy: np.ndarray | None = None
    """The derivative with respect to each entropy."""


# What the derivatives are with respect to.
DERIVED = tuple(name.removeprefix("d_") for name in Gradient._fields[1:])


class Objective(ABC):
    """A policy objective with its coefficients for one update.

    To write your own, derive from this class, implement :meth:`loss`, and pass an instance to
    :class:`~sb3_ppo_variants.PPOCustom`. Make the class a frozen dataclass, so that its coefficients can be saved and
    do not change during an update.
    """

    needs_kl: ClassVar[bool] = False
    """Whether :meth:`loss` reads a divergence or the parameters of distributions, which then need a known KL."""
    clip_range: float | None = None
    """eps, if the objective clips r(theta); ``train/clip_fraction`` is computed with it."""
    stop: EarlyStop | None = None
    """What ends an update early, unless the model has its own ``stop`` or ``target_kl``."""
    proximal_decay: float | None = None
    """Set by :class:`~sb3_ppo_variants.objectives.EWMA`, which replaces the old policy by an average of policies."""

    @property
    def within(self) -> "Objective":
        """The objective whose loss this is: itself, unless it is around another one, as an EWMA is."""
        return self

    @abstractmethod
    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        """Compute the negative objective, a scalar."""

    def check_distribution(self, distribution: Distribution) -> None:  # noqa: B027
        """Check that the loss is known for the policy's actions. Override this to raise an error where it is not.

        A model calls it when it is made, so that what it cannot learn with does not show only after a rollout.

        :param distribution: the distribution of actions in a state
        """

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
    """An objective with a hand-written gradient, which takes a fraction of the time of autograd on the fast path.

    The gradient is that with respect to log r, the two KLs and the entropy. A loss that depends on the policy in
    another way cannot have one.
    """

    @abstractmethod
    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        """Compute the loss and its derivatives. :func:`~sb3_ppo_variants.check_gradient` compares it with autograd."""


class NativeObjective(Objective):
    """A dataclass of coefficients whose loss and derivatives the native library computes too, in ``objectives.hpp``."""

    term: ClassVar[str]
    """Its constant of the enumeration ``Objectives`` in ``interface.hpp``."""

    @property
    @abstractmethod
    def constants(self) -> Sequence[float]:
        """The numbers that its term takes."""

    numbers_per_sample: ClassVar[int] = 0
    """How many numbers its term takes for each sample."""

    def coefficients(self) -> dict[str, float]:
        """Return the fields that are numbers."""
        return {name: float(value) for name, value in vars(self).items() if isinstance(value, Real)}

    def per_sample(self, rollout: Batch[np.ndarray]) -> np.ndarray:
        """Return the numbers that its term takes for each sample, shape ``(rows, numbers_per_sample)``.

        :param rollout: a batch with all samples, as :meth:`Batch.over_rollout` passes it
        """
        return np.empty((len(rollout.old_log_prob), 0))


def _is_given_with_loss(objective: Objective, member: str) -> bool:
    """Whether an objective has a member that belongs to its loss, and not to one that it has overridden."""
    for cls in type(objective).__mro__:
        members = cls.__dict__
        if member in members and member not in getattr(cls, "__abstractmethods__", ()):
            return True
        if "loss" in members:
            return False
    return False


def has_term(objective: Objective) -> TypeGuard[NativeObjective]:
    """Whether the native library computes an objective without calling Python."""
    return isinstance(objective, NativeObjective) and _is_given_with_loss(objective, "term")


def has_gradient(objective: Objective) -> TypeGuard[ArrayObjective]:
    """Whether an objective has a gradient over arrays that belongs to its loss."""
    return _is_given_with_loss(objective, "gradient")


def gradient_of(objective: ArrayObjective, batch: Batch[np.ndarray]) -> Gradient:
    """Compute the losses and the gradient of an objective.

    :raises ArgumentError: if it returns anything but a ``Gradient``, if what it contains is not an array of shape
        ``(batch,)``, or if a KL has a derivative although the objective does not need it
    """
    returned, name = objective.gradient(batch), type(objective).__name__
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= len(Gradient._fields):
        raise ArgumentError(f"{name}.gradient returned {returned!r}; allowed: a Gradient")
    found = Gradient(*returned)
    for field, array in zip(Gradient._fields, found, strict=True):
        if array is None and field in Gradient._field_defaults:
            continue
        if not isinstance(array, np.ndarray) or array.shape != batch.advantages.shape:
            which = f"of shape {array.shape}" if isinstance(array, np.ndarray | np.generic) else f"= {array!r}"
            raise ArgumentError(
                f"{name}.gradient returned {field} {which}; allowed: an array of shape {batch.advantages.shape}, one "
                "number per sample"
            )
        if field in ("d_kl", "d_reverse_kl") and not objective.needs_kl:
            raise ArgumentError(
                f"{name}.gradient returned a {field}, but needs_kl is False: set needs_kl = True in its class, or "
                "return None"
            )
    return found
