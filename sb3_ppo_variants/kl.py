"""The exact divergences between two policies, for every SB3 action distribution: KL(old || new) above all.

SB3 reuses one mutable ``Distribution`` object per policy, so an old policy is stored as its distribution's
*parameters*: a tuple of tensors with one row per state. A divergence takes two such tuples and returns one number per
state. KL and Renyi divergences are sums over action dimensions, which are independent; a Jensen-Shannon divergence is
not, so it is only known for a single discrete action.

Squashing actions through tanh is a bijection and leaves all of them unchanged, so squashed Gaussians have the
divergences of the Gaussians underneath. With gSDE, the density that SB3 evaluates is a Gaussian too, with a standard
deviation that depends on the state.

The masked distributions of sb3-contrib are categorical. Masked actions have probability 0 and contribute nothing.

To support another distribution, call :func:`register_kl`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, log
from numbers import Real
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
RenyiFormula: TypeAlias = Callable[[Parameters, Parameters, float], th.Tensor]

# Orders of a Renyi divergence that are so close to 1 are taken as 1, because rounding errors grow like 1 / (a - 1).
NEARLY_ONE = 1e-6


class MissingKLError(NotImplementedError):
    """The KL, or another divergence, is not known for the policy's action distribution."""


@dataclass(frozen=True)
class Divergences:
    """Reads the parameters of a distribution, and computes the divergences between two sets of them.

    All methods take the parameters of the old and the new policy, each tensor of shape ``(batch, ...)``, and return
    nats in each state, of shape ``(batch,)``, which can be differentiated with respect to the new parameters.
    """

    distribution: type[Distribution]
    parameters: Callable[[Wrapped], Parameters]
    kl: Formula
    """Computes KL(old || new)."""
    renyi_formula: RenyiFormula | None = None
    jensen_shannon_formula: Formula | None = None
    built_in: bool = False
    """Whether the formulas come from this package, and not from a user."""

    def reverse_kl(self, old: Parameters, new: Parameters) -> th.Tensor:
        """Compute KL(new || old)."""
        return self.kl(new, old)

    def renyi(self, old: Parameters, new: Parameters, order: float) -> th.Tensor:
        """Compute the Renyi divergence D_a(old || new) = log E_new[(old / new)^a] / (a - 1).

        See section II of https://arxiv.org/abs/1206.2459.

        :param order: a > 0; with a = 1 it is KL(old || new)
        :raises ArgumentError: if ``order`` has a value that is not allowed
        :raises MissingKLError: if a registered distribution has no formula for it
        """
        if not (isinstance(order, Real) and 0 < order < inf):
            refuse("order", order, "a finite number > 0")
        if abs(order - 1) < NEARLY_ONE:
            return self.kl(old, new)
        if self.renyi_formula is None:
            raise MissingKLError(self._unknown("Renyi", "renyi"))
        return self.renyi_formula(old, new, order)

    def jensen_shannon(self, old: Parameters, new: Parameters) -> th.Tensor:
        """Compute the Jensen-Shannon divergence (KL(old || m) + KL(new || m)) / 2 with m = (old + new) / 2.

        See https://doi.org/10.1109/18.61115. It is at most log 2.

        :raises MissingKLError: if it is not known: for a Gaussian, which has no closed form, for several actions at
            once, and for a registered distribution without a formula for it
        """
        if self.jensen_shannon_formula is None:
            raise MissingKLError(self._unknown("Jensen-Shannon", "jensen_shannon"))
        return self.jensen_shannon_formula(old, new)

    def between(self, name: str, old: Parameters, new: Parameters) -> object:
        """Look up what an objective may read of two distributions, or ``None`` if there is no such thing."""
        match name:
            case "kl":
                return self.kl(old, new)
            case "reverse_kl":
                return self.reverse_kl(old, new)
            case "jensen_shannon":
                return self.jensen_shannon(old, new)
            case "renyi":
                return partial(self.renyi, old, new)
            case "old_parameters":
                return old
            case "parameters":
                return new
        return None

    def _unknown(self, whose: str, argument: str) -> str:
        name = self.distribution.__name__
        problem = f"the {whose} divergence of the action distribution {name} is not known"
        if self.built_in:
            return f"{problem}: it has no closed form; allowed: the KL, the reverse KL and Renyi divergences"
        return (
            f"{problem}; give it one with sb3_ppo_variants.register_kl({name}, parameters, formula, "
            f"{argument}={argument})"
        )


_REGISTRY: dict[type[Distribution], Divergences] = {}


def register_kl(
    distribution: type[Distribution],
    parameters: Callable[[Wrapped], Parameters],
    formula: Formula,
    *,
    renyi: RenyiFormula | None = None,
    jensen_shannon: Formula | None = None,
) -> None:
    """Register the exact KL of a distribution, and optionally other divergences.

    Its subclasses have the same, unless they override ``log_prob``: with another density, they have another KL.

    All formulas return a tensor of shape ``(batch,)``, for the distribution of all action dimensions together. Another
    shape is a ``ValueError`` during training.

    :param distribution: a subclass of SB3's ``Distribution``
    :param parameters: takes a distribution and returns the tensors that define it, each of shape ``(batch, ...)``
    :param formula: takes the old and the new parameters and returns KL(old || new), differentiable with respect to the
        new parameters. For the reverse KL, it is called with the new parameters first
    :param renyi: takes the old and the new parameters and the order a > 0, which is not 1, and returns D_a(old || new)
    :param jensen_shannon: takes the old and the new parameters and returns their Jensen-Shannon divergence
    :raises ArgumentError: if ``distribution`` is not such a class
    """
    if not (isinstance(distribution, type) and issubclass(distribution, Distribution)):
        refuse("distribution", distribution, "a subclass of SB3's Distribution")
    formulas = [_of_states(distribution, given) for given in (formula, renyi, jensen_shannon)]
    _REGISTRY[distribution] = Divergences(distribution, parameters, *formulas)


def _of_states(distribution: type[Distribution], formula: Any) -> Any:
    """Let a user's formula raise an error if it does not return one number per state."""
    if formula is None:
        return None

    def of_states(old: Parameters, *others: Any) -> th.Tensor:
        values: th.Tensor = formula(old, *others)
        if values.shape != old[0].shape[:1]:
            raise ValueError(
                f"a divergence registered for {distribution.__name__} has the shape {tuple(values.shape)}; allowed: "
                f"{tuple(old[0].shape[:1])}, one number per state, summed over the action dimensions"
            )
        return values

    return of_states


def register_built_in(divergences: Divergences) -> None:
    """Register the divergences of a distribution, with formulas of this package."""
    _REGISTRY[divergences.distribution] = replace(divergences, built_in=True)


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
def _gaussian_kl(old: Parameters, new: Parameters) -> th.Tensor:
    (old_mean, old_std), (mean, std) = old, new
    p, q = Normal(old_mean, old_std, validate_args=False), Normal(mean, std, validate_args=False)
    return kl_divergence(p, q).sum(dim=1)


def _gaussian_renyi(old: Parameters, new: Parameters, order: float) -> th.Tensor:
    """Section II of https://arxiv.org/abs/1206.2459; infinite where the mixed variance is not positive."""
    # Near order 1 or with equal policies, the difference of logarithms is tiny, so single precision does not suffice.
    (old_mean, old_std), (mean, std) = (tuple(each.double() for each in parameters) for parameters in (old, new))
    mixed = order * std**2 + (1 - order) * old_std**2
    finite = mixed > 0
    mixed = mixed.where(finite, 1.0)  # Otherwise the gradient is NaN where the divergence is infinite.
    logs = mixed.log() / 2 - (1 - order) * old_std.log() - order * std.log()
    divergence = order * (old_mean - mean) ** 2 / (2 * mixed) + logs / (1 - order)
    return divergence.where(finite, inf).sum(dim=1).to(new[0].dtype)


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


def _discrete_renyi(old: Parameters, new: Parameters, order: float, log_probs: LogProbs = _log_probs) -> th.Tensor:
    # With equal policies, the logarithm of a sum near 1 has few correct digits in single precision.
    p, q = (log_probs(tuple(each.double() for each in parameters)) for parameters in (old, new))
    return th.stack([*map(partial(_renyi_of_outcomes, order=order), p, q)], dim=1).sum(dim=1).to(new[0].dtype)


def _discrete_jensen_shannon(old: Parameters, new: Parameters, log_probs: LogProbs = _log_probs) -> th.Tensor:
    old_log_probs, new_log_probs = log_probs(old), log_probs(new)
    if len(old_log_probs) > 1:
        raise MissingKLError(
            f"the Jensen-Shannon divergence of {len(old_log_probs)} discrete actions is not known: it is not the sum "
            "over actions; allowed: a single action"
        )
    return _jensen_shannon_of_outcomes(old_log_probs[0], new_log_probs[0])


def _kl_of_outcomes(old_log_probs: th.Tensor, log_probs: th.Tensor) -> th.Tensor:
    """p (log p - log q), summed over the outcomes in the last dimension.

    PyTorch's own divergences are infinite where q underflows to 0, although log q is finite.
    """
    probs = old_log_probs.exp()
    # Outcomes with p = 0 contribute nothing. Without the mask, 0 times an infinite or undefined difference is NaN.
    return (probs * (old_log_probs - log_probs).masked_fill(probs == 0, 0.0)).sum(dim=-1)


def _renyi_of_outcomes(old_log_probs: th.Tensor, log_probs: th.Tensor, order: float) -> th.Tensor:
    """The logarithm of the sum of p^a q^(1 - a) over the outcomes in the last dimension, divided by a - 1."""
    terms = order * old_log_probs + (1 - order) * log_probs
    # Outcomes that are impossible in both contribute nothing; with a > 1, their term would be undefined.
    return terms.masked_fill(old_log_probs == -inf, -inf).logsumexp(dim=-1) / (order - 1)


def _jensen_shannon_of_outcomes(old_log_probs: th.Tensor, log_probs: th.Tensor) -> th.Tensor:
    # The gradient of logaddexp is NaN where both are infinite.
    p, q = (each.clamp(min=th.finfo(each.dtype).min) for each in (old_log_probs, log_probs))
    mixture = th.logaddexp(p, q) - log(2)
    return (_kl_of_outcomes(p, mixture) + _kl_of_outcomes(q, mixture)) / 2


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


_OF_CATEGORIES = (_discrete_kl, _discrete_renyi, _discrete_jensen_shannon)
_OF_COINS = (
    partial(_discrete_kl, log_probs=_log_probs_of_coins),
    partial(_discrete_renyi, log_probs=_log_probs_of_coins),
    partial(_discrete_jensen_shannon, log_probs=_log_probs_of_coins),
)
_gaussian, _categorical = _read(Normal, "mean", "stddev"), _read(Categorical, "logits")
_OF_GAUSSIANS = (_gaussian, _gaussian_kl, _gaussian_renyi)
for _divergences in (
    Divergences(DiagGaussianDistribution, *_OF_GAUSSIANS),
    Divergences(SquashedDiagGaussianDistribution, *_OF_GAUSSIANS),
    Divergences(StateDependentNoiseDistribution, *_OF_GAUSSIANS),
    Divergences(CategoricalDistribution, _categorical, *_OF_CATEGORIES),
    Divergences(MultiCategoricalDistribution, _categorical, *_OF_CATEGORIES),
    Divergences(MaskableCategoricalDistribution, _masked_parameters, *_OF_CATEGORIES),
    Divergences(MaskableMultiCategoricalDistribution, _masked_parameters, *_OF_CATEGORIES),
    Divergences(BernoulliDistribution, _read(Bernoulli, "logits"), *_OF_COINS),
):
    register_built_in(_divergences)
