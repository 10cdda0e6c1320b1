"""The exact KL between two policies, for every SB3 action distribution.

SB3 reuses one mutable ``Distribution`` object per policy, so an old policy is stored as its distribution's
*parameters*: a tuple of tensors with one row per state. A KL takes two such tuples and returns one number per state,
the sum over action dimensions, which are independent.

Squashing actions through tanh is a bijection and leaves the KL unchanged, so squashed Gaussians have that of the
Gaussians underneath. With gSDE, the density that SB3 evaluates is a Gaussian too, with a standard deviation that
depends on the state.

The masked distributions of sb3-contrib are categorical. Masked actions have probability 0 and contribute nothing.

To support another distribution, call :func:`register_kl`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch as th
from sb3_contrib.common.maskable.distributions import (
    MaskableCategorical,
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
)
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence
from torch.nn import functional as F

from sb3_ppo_variants.errors import refuse

Parameters: TypeAlias = tuple[th.Tensor, ...]
# A distribution of SB3 or sb3-contrib, whose inner distribution has no type of its own there.
Wrapped: TypeAlias = Any
Formula: TypeAlias = Callable[[Parameters, Parameters], th.Tensor]
LogProbs: TypeAlias = Callable[[Parameters], Sequence[th.Tensor]]


class MissingKLError(NotImplementedError):
    """The KL is not known for the policy's action distribution."""


@dataclass(frozen=True)
class Divergences:
    """Reads the parameters of a distribution, and computes the KL between two sets of them.

    A divergence takes the parameters of the old and the new policy, each tensor of shape ``(batch, ...)``, and returns
    nats in each state, of shape ``(batch,)``, which can be differentiated with respect to the new parameters.
    """

    parameters: Callable[[Wrapped], Parameters]
    kl: Formula
    """Computes KL(old || new)."""
    built_in: bool = False
    """Whether the formula comes from this package, and not from a user."""

    def reverse_kl(self, old: Parameters, new: Parameters) -> th.Tensor:
        """Compute KL(new || old)."""
        return self.kl(new, old)

    def between(self, name: str, old: Parameters, new: Parameters) -> object:
        """Look up what an objective may read of two distributions, or ``None`` if there is no such thing."""
        match name:
            case "kl":
                return self.kl(old, new)
            case "reverse_kl":
                return self.reverse_kl(old, new)
            case "old_parameters":
                return old
            case "parameters":
                return new
        return None


_REGISTRY: dict[type[Distribution], Divergences] = {}


def register_kl(
    distribution: type[Distribution], parameters: Callable[[Wrapped], Parameters], formula: Formula
) -> None:
    """Register the exact KL of a distribution.

    Its subclasses have the same, unless they override ``log_prob``: with another density, they have another KL.

    The formula returns a tensor of shape ``(batch,)``, for the distribution of all action dimensions together. Another
    shape is a ``ValueError`` during training.

    :param distribution: a subclass of SB3's ``Distribution``
    :param parameters: takes a distribution and returns the tensors that define it, each of shape ``(batch, ...)``
    :param formula: takes the old and the new parameters and returns KL(old || new), differentiable with respect to the
        new parameters. For the reverse KL, it is called with the new parameters first
    :raises ArgumentError: if ``distribution`` is not such a class
    """
    if not (isinstance(distribution, type) and issubclass(distribution, Distribution)):
        refuse("distribution", distribution, "a subclass of SB3's Distribution")

    def of_states(old: Parameters, new: Parameters) -> th.Tensor:
        values = formula(old, new)
        if values.shape != old[0].shape[:1]:
            raise ValueError(
                f"the KL registered for {distribution.__name__} has the shape {tuple(values.shape)}; allowed: "
                f"{tuple(old[0].shape[:1])}, one number per state, summed over the action dimensions"
            )
        return values

    _REGISTRY[distribution] = Divergences(parameters, of_states)


def register_built_in(
    parameters: Callable[[Wrapped], Parameters], formula: Formula, *distributions: type[Distribution]
) -> None:
    """Register the same formula of this package for distributions; see :func:`register_kl`."""
    _REGISTRY.update(dict.fromkeys(distributions, Divergences(parameters, formula, built_in=True)))


def divergences_of(distribution: Wrapped) -> Divergences:
    """Find a distribution's own divergences, or what is registered for its class or one whose density it inherits.

    :raises MissingKLError: if there is nothing
    """
    for cls in type(distribution).__mro__:
        if "divergences" in vars(cls):  # They may depend on more than the class, as in a product.
            found: Divergences = distribution.divergences()
            return found
        if cls in _REGISTRY:
            return _REGISTRY[cls]
        if "log_prob" in vars(cls):
            break
    raise MissingKLError(_missing(distribution))


def known_parameters(distribution: Distribution) -> Parameters | None:
    """Read the parameters that the KL of a distribution takes, or ``None`` if it has no known KL."""
    try:
        return divergences_of(distribution).parameters(distribution)
    except MissingKLError:
        return None


def _missing(distribution: Distribution) -> str:
    name = type(distribution).__name__
    return (
        f"no exact KL is known for the action distribution {name}; give it one with "
        f"sb3_ppo_variants.register_kl({name}, parameters, formula)"
    )


# There is no need to validate the parameters again: SB3 did when it built the distributions that they come from.
def gaussian_kl(old: Parameters, new: Parameters) -> th.Tensor:
    """Compute the KL from the means and standard deviations."""
    (old_mean, old_std), (mean, std) = old, new
    p, q = Normal(old_mean, old_std, validate_args=False), Normal(mean, std, validate_args=False)
    return kl_divergence(p, q).sum(dim=1)


def _log_probs(parameters: Parameters) -> Sequence[th.Tensor]:
    """Compute the log-probabilities of the outcomes of several choices, from the logits of each."""
    return [*map(partial(th.log_softmax, dim=1), parameters)]


def _log_probs_of_coins(parameters: Parameters) -> Sequence[th.Tensor]:
    """The same for several coins, of which there is one tensor of logits."""
    # Compute the log-probabilities of 0 and 1 separately: where p rounds to 1, 1 - p would be 0.
    (logits,) = parameters
    return th.stack((F.logsigmoid(-logits), F.logsigmoid(logits)), dim=2).unbind(dim=1)


def _discrete_kl(old: Parameters, new: Parameters, log_probs: LogProbs = _log_probs) -> th.Tensor:
    return th.stack([*map(_kl_of_outcomes, log_probs(old), log_probs(new))], dim=1).sum(dim=1)


def _kl_of_outcomes(old_log_probs: th.Tensor, log_probs: th.Tensor) -> th.Tensor:
    """p (log p - log q), summed over the outcomes in the last dimension.

    PyTorch's own divergences are infinite where q underflows to 0, although log q is finite.
    """
    probs = old_log_probs.exp()
    # Outcomes with p = 0 contribute nothing. Without the mask, 0 times an infinite or undefined difference is NaN.
    return (probs * (old_log_probs - log_probs).masked_fill(probs == 0, 0.0)).sum(dim=-1)


def _read(kind: type[th.distributions.Distribution], *names: str) -> Callable[[Wrapped], Parameters]:
    """Make a function that reads these attributes of the PyTorch distribution, or of the several, that SB3's wraps.

    :param kind: its class. A subclass of an SB3 distribution may draw its actions from another one
    """

    def parameters(distribution: Wrapped) -> Parameters:
        found = distribution.distribution
        parts = found if isinstance(found, list | tuple) else [found]
        read: list[th.Tensor] = []
        for part in parts:
            if type(part) is not kind:
                raise MissingKLError(_missing(distribution))
            read += map(partial(getattr, part), names)
        return tuple(read)

    return parameters


def _masked_parameters(distribution: Wrapped) -> Parameters:
    # The logits of masked actions are finite, but so low that the probabilities are 0: they contribute 0 to the KL.
    logits: list[th.Tensor] = []
    for part in getattr(distribution, "distributions", None) or [distribution.distribution]:
        if type(part) is not MaskableCategorical:
            raise MissingKLError(_missing(distribution))
        logits.append(part.logits)
    return tuple(logits)


read_gaussian, _categorical = _read(Normal, "mean", "stddev"), _read(Categorical, "logits")
register_built_in(read_gaussian, gaussian_kl, DiagGaussianDistribution, SquashedDiagGaussianDistribution)
register_built_in(read_gaussian, gaussian_kl, StateDependentNoiseDistribution)
register_built_in(_categorical, _discrete_kl, CategoricalDistribution, MultiCategoricalDistribution)
register_built_in(
    _masked_parameters, _discrete_kl, MaskableCategoricalDistribution, MaskableMultiCategoricalDistribution
)
register_built_in(
    _read(Bernoulli, "logits"), partial(_discrete_kl, log_probs=_log_probs_of_coins), BernoulliDistribution
)
