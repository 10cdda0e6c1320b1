"""Distributions of continuous actions: the values of ``policy_kwargs=dict(distribution=..., std=...)``.

A part such as :class:`Beta` says how actions are drawn, and makes the distribution for a number of action dimensions.
Bounded distributions draw actions from [-1, 1], which SB3's policies scale to the bounds of the action space; densities
and entropies are those of the actions in [-1, 1], as they are in SB3.

SB3's policies give the output of a linear layer, and a parameter for the standard deviations if there is one, to
subclasses of ``DiagGaussianDistribution``. All distributions here derive from it for that reason alone.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import DiagGaussianDistribution, TanhBijector
from torch import nn
from torch.nn import functional as F

from sb3_ppo_variants.errors import ArgumentError, refuse
from sb3_ppo_variants.kl import Parameters, gaussian_kl, read_gaussian, register_built_in
from sb3_ppo_variants.layout import float_bounds

__all__ = ["ActionDistribution", "Beta", "Gaussian", "SquashedGaussian"]

Std: TypeAlias = Literal["parameter", "state"]
# The density of a Beta distribution is 0 at the bounds. The density of actions that are closer to them than half the
# precision of a float is the density there.
EDGE = 2.0**-24
# The mean of a function of a standard normal number, by the trapezoidal rule. For log(1 - tanh(x)^2), its error is at
# most 1e-8 where the standard deviation of x is at most 1, and 0.0012 where it is at most 4.
NODES = th.linspace(-6, 6, 32, dtype=th.float64)
WEIGHTS = (-NODES.square() / 2).softmax(dim=0)


class _OutputsDistribution(DiagGaussianDistribution):
    """A distribution with two parameters for each action dimension, both of which are outputs of the network.

    :param action_dim: number of action dimensions
    """

    def proba_distribution_net(  # type: ignore[override]
        self, latent_dim: int, log_std_init: float = 0.0
    ) -> tuple[nn.Module, None]:
        """Return a layer with two outputs for each dimension, and no further parameter."""
        return nn.Linear(latent_dim, 2 * self.action_dim), None


class StateGaussianDistribution(_OutputsDistribution):
    """A Gaussian whose means and logarithms of standard deviations are outputs of the network."""

    def proba_distribution(
        self, mean_actions: th.Tensor, log_std: th.Tensor | None = None
    ) -> "StateGaussianDistribution":
        """Set the outputs of the layer, shape ``(batch, 2 * action_dim)``: all means, then all logarithms."""
        means, logs = mean_actions.chunk(2, dim=1)
        return super().proba_distribution(means, logs)

    def initialize(self, bias: th.Tensor, log_std_init: float) -> None:
        """Let standard deviations begin near exp(``log_std_init``).

        :param bias: the biases of a new layer, shape ``(2 * action_dim,)``
        """
        with th.no_grad():
            bias[self.action_dim :] = log_std_init


class SquashedGaussianDistribution(DiagGaussianDistribution):
    """tanh of a Gaussian (appendix C of https://arxiv.org/abs/1801.01290).

    SB3's class of this kind adds 1e-6 to the derivative of tanh, which changes log-probabilities near the bounds. Here
    they are exact, except that actions closer to the bounds than the precision of their type, such as 2^-23, count as
    that far away. The mode is that of the Gaussian, squashed, as in SB3.
    """

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return log-probabilities, shape ``(batch,)``; those at the bounds are finite."""
        drawn = TanhBijector.inverse(actions)
        return super().log_prob(drawn) - _log_slope(drawn).sum(dim=1)

    def entropy(self) -> th.Tensor:
        """Return entropies, shape ``(batch,)``: that of the Gaussian, and E[log(1 - tanh(x)^2)] by quadrature."""
        mean, std = (each.unsqueeze(-1) for each in (self.distribution.mean, self.distribution.stddev))
        entropy: th.Tensor = super().entropy()  # type: ignore[assignment]
        return entropy + (_log_slope(mean + std * NODES.to(mean)) @ WEIGHTS.to(mean)).sum(dim=1)

    def sample(self) -> th.Tensor:
        """Draw actions from [-1, 1]."""
        return th.tanh(super().sample())

    def mode(self) -> th.Tensor:
        """Return tanh of the mean."""
        return th.tanh(super().mode())


def _log_slope(x: th.Tensor) -> th.Tensor:
    """The logarithm of the derivative of tanh."""
    return 2 * (log(2) - x - F.softplus(-2 * x))


class SquashedStateGaussianDistribution(SquashedGaussianDistribution, StateGaussianDistribution):
    """tanh of a Gaussian whose standard deviations are outputs of the network."""


class BetaDistribution(_OutputsDistribution):
    """Independent Beta distributions on [-1, 1] (https://proceedings.mlr.press/v70/chou17a.html).

    Both of their parameters are softplus(output) + 1, so each density has a single peak. It computes in double
    precision, because the logarithms of Gamma functions cancel each other.
    """

    distribution: th.distributions.Beta  # type: ignore[assignment]

    def proba_distribution(self, mean_actions: th.Tensor, log_std: th.Tensor | None = None) -> "BetaDistribution":
        """Set the outputs of the layer, shape ``(batch, 2 * action_dim)``: all those of alpha, then of beta."""
        alpha, beta = (F.softplus(mean_actions) + 1).chunk(2, dim=1)
        self.distribution = th.distributions.Beta(alpha, beta)
        return self

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return log-probabilities, shape ``(batch,)``; they are finite at the bounds."""
        alpha, beta = (each.double() for each in _beta(self))
        log_x, log_rest = (((1 + sign * actions.double()) / 2).clamp(min=EDGE).log() for sign in (1, -1))
        log_beta = th.lgamma(alpha) + th.lgamma(beta) - th.lgamma(alpha + beta)
        log_probs = (alpha - 1) * log_x + (beta - 1) * log_rest - log_beta - log(2)
        return log_probs.sum(dim=1).to(self.distribution.concentration1.dtype)

    def entropy(self) -> th.Tensor:
        """Return entropies, shape ``(batch,)``."""
        entropies: th.Tensor = _betas(_beta(self)).entropy() + log(2)  # type: ignore[no-untyped-call]
        return entropies.sum(dim=1).to(self.distribution.concentration1.dtype)

    def sample(self) -> th.Tensor:
        """Draw actions from [-1, 1]."""
        return 2 * self.distribution.rsample() - 1

    def mode(self) -> th.Tensor:
        """Return the most probable actions."""
        # Both parameters may have been rounded to 1.
        above, below = ((each - 1).clamp(min=EDGE) for each in _beta(self))
        return 2 * above / (above + below) - 1


def _beta(distribution: BetaDistribution) -> Parameters:
    return distribution.distribution.concentration1, distribution.distribution.concentration0


def _betas(parameters: Parameters) -> th.distributions.Beta:
    alpha, beta = (each.double() for each in parameters)
    return th.distributions.Beta(alpha, beta, validate_args=False)


def _beta_kl(old: Parameters, new: Parameters) -> th.Tensor:
    return th.distributions.kl_divergence(_betas(old), _betas(new)).sum(dim=1).to(new[0].dtype)


# Tanh does not change those of the Gaussian.
register_built_in(read_gaussian, gaussian_kl, SquashedGaussianDistribution)
register_built_in(_beta, _beta_kl, BetaDistribution)


@dataclass(frozen=True)
class ActionDistribution(ABC):
    """A kind of distribution of continuous actions."""

    bounded: ClassVar[bool]
    """Whether it draws actions from [-1, 1], to be scaled to the bounds of the action space."""

    @abstractmethod
    def make(self, action_dim: int) -> DiagGaussianDistribution:
        """Make the distribution of actions of this many dimensions."""

    def check(self, space: spaces.Space[object], use_sde: bool, squash_output: bool) -> None:
        """Check that the distribution fits a space and the other arguments of a policy.

        :raises ArgumentError: if it does not
        """
        given = f"policy_kwargs: distribution={self}"
        if not isinstance(space, spaces.Box):
            raise ArgumentError(f"{given} needs a Box action space, but the environment has {space}: leave it out")
        if use_sde and self != Gaussian():
            raise ArgumentError(
                f"{given} and use_sde=True are two kinds of noise: pass one of them. With use_sde=True, "
                "squash_output=True bounds actions, and standard deviations depend on the state"
            )
        if squash_output and not use_sde:
            raise ArgumentError(
                f"{given} decides whether actions are bounded: leave out squash_output=True, which is for use_sde=True"
            )
        low, high = float_bounds(space)
        with np.errstate(over="ignore", invalid="ignore"):
            is_finite = np.isfinite(high - low).all()
        if self.bounded and not is_finite:
            raise ArgumentError(
                f"{given} scales actions to the bounds of env.action_space, but some are infinite or too far apart, as "
                f"with ActionsAsDrawn: {space}. Use other bounds, or 'gaussian'"
            )


@dataclass(frozen=True)
class _WithStd(ActionDistribution):
    std: Std = "parameter"
    of_parameter: ClassVar[type[DiagGaussianDistribution]]
    of_state: ClassVar[type[DiagGaussianDistribution]]

    def __post_init__(self) -> None:
        if self.std not in ("parameter", "state"):
            refuse("std", self.std, "'parameter', 'state'")

    def make(self, action_dim: int) -> DiagGaussianDistribution:
        return (self.of_state if self.std == "state" else self.of_parameter)(action_dim)


@dataclass(frozen=True)
class Gaussian(_WithStd):
    """SB3's Gaussian, the default.

    Actions are not bounded; SB3 clips those that the environment gets.

    :param std: ``"parameter"`` for standard deviations that are parameters, as in SB3, or ``"state"`` for outputs of
        the network, as in https://arxiv.org/abs/1801.01290. Both begin near exp(``log_std_init``)
    :raises ArgumentError: if ``std`` is neither
    """

    bounded = False
    of_parameter, of_state = DiagGaussianDistribution, StateGaussianDistribution


@dataclass(frozen=True)
class SquashedGaussian(_WithStd):
    """tanh of a Gaussian (appendix C of https://arxiv.org/abs/1801.01290).

    :param std: as for :class:`Gaussian`
    :raises ArgumentError: if ``std`` is neither
    """

    bounded = True
    of_parameter, of_state = SquashedGaussianDistribution, SquashedStateGaussianDistribution


@dataclass(frozen=True)
class Beta(ActionDistribution):
    """Beta distributions with a single peak (https://proceedings.mlr.press/v70/chou17a.html)."""

    bounded = True

    def make(self, action_dim: int) -> DiagGaussianDistribution:
        """Make the distribution of actions of this many dimensions."""
        return BetaDistribution(action_dim)


NAMES: dict[str, type[ActionDistribution]] = {"gaussian": Gaussian, "squashed_gaussian": SquashedGaussian, "beta": Beta}


def distribution_of(distribution: str | ActionDistribution = "gaussian", std: Std | None = None) -> ActionDistribution:
    """Make the part for the entries ``distribution`` and ``std`` of ``policy_kwargs``.

    :param distribution: one of ``NAMES``, or a part
    :param std: ``"parameter"`` or ``"state"``, for the names of Gaussians
    :raises ArgumentError: if one is not allowed, or they do not fit together
    """
    if isinstance(distribution, ActionDistribution):
        if std is not None:
            raise ArgumentError(f"policy_kwargs: std={std!r} has no effect beside distribution={distribution}")
        return distribution
    if not isinstance(distribution, str) or distribution not in NAMES:
        instances = ", ".join(f"{cls.__name__}()" for cls in NAMES.values())
        refuse("policy_kwargs['distribution']", distribution, f"{', '.join(map(repr, NAMES))}, {instances}")
    cls = NAMES[distribution]
    if std is None:
        return cls()
    if not issubclass(cls, _WithStd):
        raise ArgumentError(
            f"policy_kwargs: std={std!r} needs a Gaussian, but distribution={distribution!r} has no standard deviation "
            "of its own: leave it out"
        )
    return cls(std)
