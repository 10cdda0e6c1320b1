"""The interface of objectives."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, TypeAlias, TypeGuard, TypeVar

import torch as th
from stable_baselines3.common.distributions import Distribution

from sb3_ppo_variants.arguments import Rule, check_arguments
from sb3_ppo_variants.limits import EarlyStop

Self = TypeVar("Self", bound="Objective")
Rules: TypeAlias = Mapping[str, Rule]


def unknown(field: str) -> None:
    """Stand for the source of a batch that has only what it was given."""


class Batch:
    """What is known about a minibatch, as tensors with one row per sample.

    Unless said otherwise, the shape is ``(batch,)``. A field is computed when an objective first reads it, so only what
    is read costs time. The gradient of a loss is taken through all fields that depend on the current policy.

    :param ratio: r(theta)
    :param advantages: A
    :param kl: KL(old || new)
    :param source: computes a field by its name, or returns ``None`` if it does not know it; only what is not given
        otherwise is asked for
    :param others: other fields by name
    """

    ratio: th.Tensor
    """r(theta) = pi(a|s) / pi_old(a|s)."""
    log_ratio: th.Tensor
    """log r(theta)."""
    log_prob: th.Tensor
    """log pi(a|s)."""
    old_log_prob: th.Tensor
    """log pi_old(a|s)."""
    advantages: th.Tensor
    """A, normalised as the model's ``normalize_advantage`` says."""
    kl: th.Tensor
    """KL(old || new) in each state, summed over action dimensions. The objective must set ``needs_kl``."""
    reverse_kl: th.Tensor
    """KL(new || old) in each state, likewise."""
    parameters: tuple[th.Tensor, ...]
    """The parameters of the distributions as in :mod:`sb3_ppo_variants.kl`, shapes ``(batch, ...)``, likewise."""
    old_parameters: tuple[th.Tensor, ...]
    """Those of the old policy, likewise."""
    entropy: th.Tensor
    """The entropy of pi in each state; where it has no closed form, -log pi(a|s) estimates it."""
    old_values: th.Tensor
    """The values that were estimated during the rollout."""
    returns: th.Tensor
    """The TD(lambda) targets of the value function."""
    observations: Any
    """Shape ``(batch, ...)``, or a dict of these."""
    actions: th.Tensor
    """As the rollout buffer has them, shape ``(batch, action_dim)``."""
    rows: th.Tensor
    """The index of each sample in the rollout, which has one environment after the other."""
    episodes: th.Tensor
    """A number for each episode, or part of one, in the rollout; its samples share it."""

    def __init__(
        self,
        ratio: th.Tensor | None = None,
        advantages: th.Tensor | None = None,
        kl: th.Tensor | None = None,
        *,
        source: Callable[[str], Any] = unknown,
        **others: object,
    ):
        self._source = source
        for name, value in (("ratio", ratio), ("advantages", advantages), ("kl", kl), *others.items()):
            if name not in FIELDS:
                raise TypeError(f"a batch has no {name!r}; its fields are {', '.join(sorted(FIELDS))}")
            if value is not None:
                setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Compute a field that has not been read before.

        :raises RuntimeError: if the source does not know it
        """
        if name not in FIELDS:
            raise AttributeError(f"a batch has no {name!r}; its fields are {', '.join(sorted(FIELDS))}")
        value = self._source(name)
        if value is None:
            value = self._derive(name)
        setattr(self, name, value)
        return value

    def _derive(self, name: str) -> th.Tensor:
        if name == "ratio":
            return self.log_ratio.exp()
        if name == "log_ratio" and "ratio" in vars(self):
            return self.ratio.log()
        if name == "log_prob":
            return self.old_log_prob + self.log_ratio
        advice = ": set needs_kl = True in its class" if name in OF_DISTRIBUTIONS else ""
        raise RuntimeError(f"the objective reads batch.{name}, which this batch does not have{advice}")

    def over_rollout(self, compute: Callable[["Batch"], th.Tensor]) -> th.Tensor:
        """Compute something for the whole rollout, only once per update, and return it for the samples of this batch.

        A batch that has no rollout, such as one that was made by hand, stands for the rollout itself.

        :param compute: a method or function that takes a batch with all samples of the rollout, on the CPU, and returns
            a tensor with one row per sample. The batch has what does not depend on the current policy, but no
            advantages. A lambda is another function each time, and is computed for each batch
        """
        of_samples: Callable[[Callable[[Batch], th.Tensor]], th.Tensor] | None = self._source("over_rollout")
        return compute(self) if of_samples is None else of_samples(compute)


FIELDS = frozenset(Batch.__annotations__)
# What is known only of distributions with a known KL.
OF_DISTRIBUTIONS = frozenset({"kl", "reverse_kl", "parameters", "old_parameters"})


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

    @abstractmethod
    def loss(self, batch: Batch) -> th.Tensor:
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


class NativeObjective(Objective):
    """A dataclass of coefficients whose loss and derivatives the native library computes too, in ``objectives.hpp``."""

    term: ClassVar[str]
    """Its constant of the enumeration ``Objectives`` in ``interface.hpp``."""
    rules: ClassVar[Rules] = {}
    """The allowed values of its fields."""
    numbers_per_sample: ClassVar[int] = 0
    """How many numbers its term takes for each sample."""

    def __post_init__(self) -> None:
        check_arguments(vars(self), self.rules)

    @property
    @abstractmethod
    def constants(self) -> Sequence[float]:
        """The numbers that its term takes."""

    def coefficients(self) -> dict[str, float]:
        """Return the fields that are numbers."""
        return {name: float(value) for name, value in vars(self).items() if isinstance(value, Real)}

    def per_sample(self, rollout: Batch) -> th.Tensor:
        """Return the numbers that its term takes for each sample, shape ``(rows, numbers_per_sample)``.

        :param rollout: a batch with all samples, as :meth:`Batch.over_rollout` passes it
        """
        return th.empty(len(rollout.old_log_prob), 0)


def has_term(objective: Objective) -> TypeGuard[NativeObjective]:
    """Whether the native library has a term for an objective whose loss no subclass has overridden."""
    for cls in type(objective).__mro__:
        if "term" in vars(cls) or "loss" in vars(cls):
            return "term" in vars(cls)
    return False
