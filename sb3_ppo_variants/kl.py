"""The exact KL divergence KL(old || new) of every SB3 action distribution.

SB3 reuses one mutable ``Distribution`` object per policy, so an old policy is stored as its distribution's
*parameters*: a tuple of tensors with one row per state. A divergence takes two such tuples and returns one number per
state, summed over action dimensions.

Squashing actions through tanh is a bijection and leaves the KL unchanged, so squashed Gaussians have the KL of the
Gaussians underneath. With gSDE, the density that SB3 evaluates is a Gaussian too, with a standard deviation that
depends on the state.

The masked distributions of sb3-contrib are categorical. Masked actions have probability 0 and contribute nothing to
the KL. These distributions are recognised by name, so that sb3-contrib need not be installed.

To support another distribution, call :func:`register_kl`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch as th
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence
from torch.nn import functional as F

from sb3_ppo_variants.errors import refuse

Parameters: TypeAlias = tuple[th.Tensor, ...]
# A distribution of SB3 or sb3-contrib, whose inner distribution has no type of its own there.
Wrapped: TypeAlias = Any
Kind = TypeVar("Kind", bound=th.distributions.Distribution)

MASKABLE = "sb3_contrib.common.maskable.distributions"


class MissingKLError(NotImplementedError):
    """The policy's action distribution has no registered KL."""


@dataclass(frozen=True)
class ExactKL:
    """Reads the parameters of a distribution, and computes the divergence between two sets of them."""

    distribution: type[Distribution]
    parameters: Callable[[Wrapped], Parameters]
    formula: Callable[[Parameters, Parameters], th.Tensor]

    def divergence(self, old: Parameters, new: Parameters) -> th.Tensor:
        """Compute KL(old || new) in each state.

        :param old: parameters of the old policy, each tensor of shape ``(batch, ...)``
        :param new: parameters of the new policy, with the same shapes
        :return: shape ``(batch,)``, in nats
        :raises ValueError: if a registered formula returns another shape
        """
        kl = self.formula(old, new)
        if kl.shape != old[0].shape[:1]:
            raise ValueError(
                f"the KL registered for {self.distribution.__name__} has the shape {tuple(kl.shape)}; allowed: "
                f"{tuple(old[0].shape[:1])}, one number per state, summed over the action dimensions"
            )
        return kl

    def between(self, name: str, old: Parameters, new: Parameters) -> Any:
        """Return what an objective may read of two distributions by its name, or ``None`` if there is no such thing."""
        if name == "kl":
            return self.divergence(old, new)
        if name == "reverse_kl":
            return self.divergence(new, old)
        return {"old_parameters": old, "parameters": new}.get(name)


_REGISTRY: dict[type[Distribution], ExactKL] = {}


def register_kl(
    distribution: type[Distribution],
    parameters: Callable[[Wrapped], Parameters],
    formula: Callable[[Parameters, Parameters], th.Tensor],
) -> None:
    """Register the exact KL of a distribution and its subclasses.

    :param distribution: a subclass of SB3's ``Distribution``
    :param parameters: takes a distribution and returns the tensors that define it, each of shape ``(batch, ...)``
    :param formula: takes the old and the new parameters and returns KL(old || new) of shape ``(batch,)``, summed over
        action dimensions and differentiable with respect to the new parameters
    :raises ArgumentError: if ``distribution`` is not such a class
    """
    if not (isinstance(distribution, type) and issubclass(distribution, Distribution)):
        refuse("distribution", distribution, "a subclass of SB3's Distribution")
    _REGISTRY[distribution] = ExactKL(distribution, parameters, formula)


def exact_kl(distribution: Distribution) -> ExactKL:
    """Return the KL registered for a distribution's class or for the nearest of its base classes.

    :raises MissingKLError: if there is none
    """
    for cls in type(distribution).__mro__:
        if cls in _REGISTRY:
            return _REGISTRY[cls]
        if cls.__module__ == MASKABLE and cls.__name__ in _MASKED:
            return ExactKL(cls, _MASKED[cls.__name__], _categorical_kl)
    raise MissingKLError(_missing(distribution))


def known_parameters(distribution: Distribution) -> Parameters | None:
    """Return the parameters that the KL of a distribution takes, or ``None`` if it has no known KL."""
    try:
        return exact_kl(distribution).parameters(distribution)
    except MissingKLError:
        return None


def _missing(distribution: Distribution) -> str:
    name = type(distribution).__name__
    return (
        f"no exact KL is known for the action distribution {name}; give it one with "
        f"sb3_ppo_variants.register_kl({name}, parameters, formula)"
    )


def is_built_in(kl: ExactKL) -> bool:
    """Return whether the KL comes from this package, and not from a user."""
    return kl in _BUILT_IN or kl.parameters in _MASKED.values()


def is_masked(distribution: object) -> bool:
    """Return whether the class of a distribution is one of sb3-contrib's masked ones, and not a subclass."""
    cls = type(distribution)
    return cls.__module__ == MASKABLE and cls.__name__ in {*_MASKED, "MaskableBernoulliDistribution"}


# There is no need to validate the parameters again: SB3 did when it built the distributions that they come from.
def _gaussian_kl(old: Parameters, new: Parameters) -> th.Tensor:
    (old_mean, old_std), (mean, std) = old, new
    p, q = Normal(old_mean, old_std, validate_args=False), Normal(mean, std, validate_args=False)
    return kl_divergence(p, q).sum(dim=1)


def _categorical_kl(old: Parameters, new: Parameters) -> th.Tensor:
    pairs = zip(old, new, strict=True)
    return th.stack([_of_outcomes(p.log_softmax(dim=1), q.log_softmax(dim=1)) for p, q in pairs], dim=1).sum(dim=1)


def _bernoulli_kl(old: Parameters, new: Parameters) -> th.Tensor:
    # Compute the log-probabilities of 0 and 1 separately: where p rounds to 1, 1 - p would be 0.
    p, q = (th.stack((F.logsigmoid(-logits), F.logsigmoid(logits)), dim=2) for (logits,) in (old, new))
    return _of_outcomes(p, q).sum(dim=1)


def _of_outcomes(old_log_probs: th.Tensor, log_probs: th.Tensor) -> th.Tensor:
    """p (log p - log q), summed over the outcomes in the last dimension.

    PyTorch's own divergences are infinite where q underflows to 0, although log q is finite.
    """
    probs = old_log_probs.exp()
    # Outcomes with p = 0 contribute nothing. Without the mask, 0 times an infinite or undefined difference is NaN.
    return (probs * (old_log_probs - log_probs).masked_fill(probs == 0, 0.0)).sum(dim=-1)


def _gaussian(distribution: Wrapped) -> Parameters:
    normal = _of_kind(Normal, distribution, distribution.distribution)
    return normal.mean, normal.stddev


def _categorical(distribution: Wrapped) -> Parameters:
    return (_of_kind(Categorical, distribution, distribution.distribution).logits,)


def _multi_categorical(distribution: Wrapped) -> Parameters:
    return tuple(_of_kind(Categorical, distribution, part).logits for part in distribution.distribution)


def _masked_categorical(distribution: Wrapped) -> Parameters:
    return (_masked_logits(distribution, distribution.distribution),)


def _masked_multi_categorical(distribution: Wrapped) -> Parameters:
    return tuple(_masked_logits(distribution, part) for part in distribution.distributions)


def _masked_logits(distribution: Distribution, found: Wrapped) -> th.Tensor:
    # The logits of masked actions are finite, but so low that the probabilities are 0: they contribute 0 to the KL.
    if (type(found).__module__, type(found).__name__) != (MASKABLE, "MaskableCategorical"):
        raise MissingKLError(_missing(distribution))
    logits: th.Tensor = found.logits
    return logits


def _bernoulli(distribution: Wrapped) -> Parameters:
    return (_of_kind(Bernoulli, distribution, distribution.distribution).logits,)


def _of_kind(kind: type[Kind], distribution: Distribution, found: th.distributions.Distribution) -> Kind:
    # A subclass of an SB3 distribution may draw its actions from a different PyTorch distribution.
    if type(found) is not kind:
        raise MissingKLError(_missing(distribution))
    return found


register_kl(DiagGaussianDistribution, _gaussian, _gaussian_kl)
register_kl(StateDependentNoiseDistribution, _gaussian, _gaussian_kl)
register_kl(CategoricalDistribution, _categorical, _categorical_kl)
register_kl(MultiCategoricalDistribution, _multi_categorical, _categorical_kl)
register_kl(BernoulliDistribution, _bernoulli, _bernoulli_kl)
_BUILT_IN = tuple(_REGISTRY.values())
# The masked Bernoulli distribution needs no entry: it is a multi-categorical one with two categories per dimension.
_MASKED: dict[str, Callable[[Wrapped], Parameters]] = {
    "MaskableCategoricalDistribution": _masked_categorical,
    "MaskableMultiCategoricalDistribution": _masked_multi_categorical,
}
