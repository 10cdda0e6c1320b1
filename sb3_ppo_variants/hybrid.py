"""The product distribution of hybrid actions, whose parts are independent given the observation.

Log-probabilities, entropies, and the KL and Renyi divergences are sums over the parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any, NamedTuple

import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    DiagGaussianDistribution,
    Distribution,
    make_proba_distribution,
)
from torch import nn

from sb3_ppo_variants.errors import ArgumentError, refuse
from sb3_ppo_variants.kl import Divergences, MissingKLError, Parameters, divergences_of
from sb3_ppo_variants.layout import AnySpace, HybridLayout, Part, count


class HybridDistribution(DiagGaussianDistribution):
    """A product of SB3's distributions, one for each part of a ``Dict`` or ``Tuple`` space.

    Actions are rows, shape ``(batch, n_columns)``. It derives from SB3's Gaussian because SB3's policies give the
    output of a linear layer, and a parameter for the standard deviations, to subclasses of that alone.

    :param layout: the layout of the actions
    :param entropy_weights: the factors of the parts' entropies by name; 1 for parts that are not named
    :raises ArgumentError: if there is no such part, or a factor is not a finite number
    """

    def __init__(self, layout: HybridLayout, entropy_weights: Mapping[str, float] | None = None):
        super().__init__(count(layout.rows))
        self._layout = layout
        self._weights = _factors(layout.parts, entropy_weights or {})
        self.parts: list[Distribution] = [make_proba_distribution(part.flat) for part in layout.parts]
        """The distributions of the parts."""
        sizes = [_sizes_of(part.flat) for part in layout.parts]
        self._n_outputs, self._n_stds, self._n_parameters = (list(each) for each in zip(*sizes, strict=True))

    def proba_distribution_net(  # type: ignore[override]
        self, latent_dim: int, log_std_init: float = 0.0
    ) -> tuple[nn.Module, nn.Parameter | None]:
        """Return a layer for all parts, and the logarithms of the standard deviations of all continuous columns."""
        n_stds = sum(self._n_stds)
        log_std = nn.Parameter(th.full((n_stds,), float(log_std_init))) if n_stds else None
        return nn.Linear(latent_dim, sum(self._n_outputs)), log_std

    def proba_distribution(self, mean_actions: th.Tensor, log_std: th.Tensor | None = None) -> "HybridDistribution":
        """Set the outputs of the layer, shape ``(batch, n_outputs)``, and the logarithms of standard deviations."""
        outputs = th.split(mean_actions, self._n_outputs, dim=1)
        log_stds = [] if log_std is None else [each for each in th.split(log_std, self._n_stds) if len(each)]
        for part, of_part, n_stds in zip(self.parts, outputs, self._n_stds, strict=True):
            part.proba_distribution(of_part, *([log_stds.pop(0)] if n_stds else []))
        self._dtype = mean_actions.dtype
        return self

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return log-probabilities, shape ``(batch,)``."""
        return th.stack(self.log_probs(actions)).sum(dim=0)

    def log_probs(self, actions: th.Tensor) -> list[th.Tensor]:
        """Return the log-probabilities of each part, shape ``(batch,)``."""
        columns = [actions[:, part.columns] for part in self._layout.parts]
        is_single = [isinstance(part.space, spaces.Discrete) for part in self._layout.parts]
        each = zip(self.parts, columns, is_single, strict=True)
        return [part.log_prob(of_part[:, 0] if single else of_part) for part, of_part, single in each]

    def entropy(self) -> th.Tensor:
        """Return the sum of the parts' entropies times their factors, shape ``(batch,)``."""
        each: Any = zip(self._weights, self.parts, strict=True)
        return th.stack([factor * part.entropy() for factor, part in each]).sum(dim=0)

    def sample(self) -> th.Tensor:
        """Draw actions."""
        return self._joined([part.sample() for part in self.parts])

    def mode(self) -> th.Tensor:
        """Return the most probable actions."""
        return self._joined([part.mode() for part in self.parts])

    def _joined(self, of_parts: Sequence[th.Tensor]) -> th.Tensor:
        return th.cat([each.reshape(len(each), -1).to(self._dtype) for each in of_parts], dim=1)

    def divergences(self) -> Divergences:
        """Return the divergences of the product, whose parameters are those of all parts, one after the other."""
        product = _Product(tuple(map(divergences_of, self.parts)), tuple(self._n_parameters))
        return Divergences(type(self), _parameters, product.kl, product.renyi, product.jensen_shannon)


@dataclass(frozen=True)
class _Product:
    """The divergences of a product.

    :param factors: those of its factors
    :param n_parameters: the number of tensors of each factor
    """

    factors: tuple[Divergences, ...]
    n_parameters: tuple[int, ...]

    def kl(self, old: Parameters, new: Parameters) -> th.Tensor:
        return self._sum(lambda factor, p, q: factor.kl(p, q), old, new)

    def renyi(self, old: Parameters, new: Parameters, order: float) -> th.Tensor:
        return self._sum(lambda factor, p, q: factor.renyi(p, q, order), old, new)

    def jensen_shannon(self, old: Parameters, new: Parameters) -> th.Tensor:
        """The divergence of a single part.

        :raises MissingKLError: if there are several, because it is not the sum over them
        """
        if len(self.factors) > 1:
            raise MissingKLError(
                f"the Jensen-Shannon divergence of actions with {len(self.factors)} parts is not known: it is not the "
                "sum over parts; allowed: the KL, the reverse KL and Renyi divergences"
            )
        return self.factors[0].jensen_shannon(old, new)

    def _sum(
        self, formula: Callable[[Divergences, Parameters, Parameters], th.Tensor], old: Parameters, new: Parameters
    ) -> th.Tensor:
        total, first = th.zeros_like(new[0][:, 0]), 0
        for factor, number in zip(self.factors, self.n_parameters, strict=True):
            total = total + formula(factor, old[first : first + number], new[first : first + number])
            first += number
        return total


def _parameters(distribution: HybridDistribution) -> Parameters:
    return tuple(tensor for part in distribution.parts for tensor in divergences_of(part).parameters(part))


class _Sizes(NamedTuple):
    n_outputs: int
    """The number of outputs of the layer: means, or logits."""
    n_stds: int
    """The number of standard deviations that are parameters of the policy."""
    n_parameters: int
    """The number of tensors that define the distribution."""


def _sizes_of(space: AnySpace) -> _Sizes:
    match space:
        case spaces.Discrete():
            return _Sizes(int(space.n), 0, 1)
        case spaces.MultiDiscrete():
            return _Sizes(int(space.nvec.sum()), 0, len(space.nvec))
        case spaces.MultiBinary():
            return _Sizes(count(space), 0, 1)
    return _Sizes(count(space), count(space), 2)


def _factors(parts: Sequence[Part], given: Mapping[str, float]) -> list[float]:
    names = [part.name for part in parts]
    for name, factor in given.items():
        if name not in names:
            raise ArgumentError(
                f"policy_kwargs['entropy_weights'] has no entry {name!r}: the parts of the actions are "
                f"{', '.join(map(repr, names))}"
            )
        if not isinstance(factor, Real) or isinstance(factor, bool) or not isfinite(factor):
            refuse(f"policy_kwargs['entropy_weights'][{name!r}]", factor, "a finite number")
    return [float(given.get(name, 1.0)) for name in names]
