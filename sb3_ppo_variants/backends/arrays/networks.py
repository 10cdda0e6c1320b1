"""The networks of SB3's ``ActorCriticPolicy`` over arrays."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from sb3_ppo_variants.backends.arrays.discrete import Bernoulli, Categorical, MultiCategorical
from sb3_ppo_variants.backends.arrays.distribution import Distribution
from sb3_ppo_variants.backends.arrays.gaussian import DiagGaussian
from sb3_ppo_variants.backends.arrays.masks import masked
from sb3_ppo_variants.backends.arrays.mlp import RELU, TANH, Activation, Linear, Mlp
from sb3_ppo_variants.backends.arrays.state_dependent import Settings, StateDependent, matrices

ACTIVATIONS: dict[type[nn.Module], Activation] = {nn.Tanh: TANH, nn.ReLU: RELU}
# Enough rows to keep BLAS busy, few enough for the activations to stay in the cache.
ROWS_AT_ONCE = 512
ACTOR, CRITIC = "mlp_extractor.policy_net", "mlp_extractor.value_net"


@dataclass(frozen=True)
class Architecture:
    """The architecture of an SB3 policy: the names of its layers, its activation and its distribution."""

    actor: list[str]
    critic: list[str]
    activation: Activation
    log_std: str | None
    kind: type[Distribution]
    distribution: Callable[..., Distribution]
    noise: Callable[[tuple[int, int, int], th.dtype], Iterable[Any]]
    """Returns the noise that ``sample`` needs, from torch's generator; takes (steps, states per step, outputs)."""
    sizes: list[int]
    """Outputs of the policy network for each part of a multi-categorical action; for others, one entry with all."""

    @classmethod
    def of(cls, policy: ActorCriticPolicy) -> "Architecture":
        """Return the architecture of a policy that has no :func:`~.obstacles.obstacle`."""
        kind, distribution, noise = _distribution(policy)
        return cls(
            actor=_hidden_layers(policy, ACTOR),
            critic=_hidden_layers(policy, CRITIC),
            activation=_activation(policy),
            log_std="log_std" if kind in (DiagGaussian, StateDependent) else None,
            kind=kind,
            distribution=distribution,
            noise=noise,
            sizes=_sizes(policy),
        )

    def output(self, action_net: Linear, latent: np.ndarray) -> np.ndarray:
        """Compute the array that the distributions are built from, given the last hidden layer."""
        output = action_net.forward(latent)
        return np.concatenate([output, latent], axis=1) if self.kind.sees_latent else output

    def log_std_of(self, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return a tuple with the distribution's own parameter, empty if it has none."""
        return () if self.log_std is None else (arrays[self.log_std],)


def _hidden_layers(policy: ActorCriticPolicy, network: str) -> list[str]:
    modules: Any = policy.get_submodule(network)
    return [f"{network}.{i}" for i, module in enumerate(modules) if isinstance(module, nn.Linear)]


def _activation(policy: ActorCriticPolicy) -> Activation:
    extractor: Any = policy.mlp_extractor
    kinds = [type(module) for module in (*extractor.policy_net, *extractor.value_net) if type(module) in ACTIVATIONS]
    return ACTIVATIONS[kinds[0]] if kinds else TANH


class _Drawn(NamedTuple):
    """The fields of an :class:`Architecture` that describe its distribution."""

    kind: type[Distribution]
    distribution: Callable[..., Distribution]
    noise: Callable[..., Iterable[Any]]


def _distribution(policy: ActorCriticPolicy) -> _Drawn:
    distribution = policy.action_dist
    if isinstance(distribution, DiagGaussianDistribution):
        return _Drawn(DiagGaussian, DiagGaussian, DiagGaussian.noise)
    if isinstance(distribution, StateDependentNoiseDistribution):
        made = partial(StateDependent.of, settings=Settings.of(distribution))
        return _Drawn(StateDependent, made, lambda *_: matrices(policy))
    if isinstance(distribution, BernoulliDistribution):
        return _Drawn(Bernoulli, Bernoulli, Bernoulli.noise)
    # Multi-categorical distributions of SB3 and sb3-contrib, including sb3-contrib's masked Bernoulli distribution.
    sizes = getattr(distribution, "action_dims", None)
    if sizes is None:
        return _Drawn(Categorical, Categorical, Categorical.noise)
    parts = partial(MultiCategorical.of, sizes=[int(size) for size in sizes])
    return _Drawn(MultiCategorical, parts, MultiCategorical.noise)


def _sizes(policy: ActorCriticPolicy) -> list[int]:
    distribution: Any = policy.action_dist
    if isinstance(distribution, MultiCategoricalDistribution):
        return [int(size) for size in distribution.action_dims]
    return [len(policy.get_parameter("action_net.bias"))]


class Acted(NamedTuple):
    """The result of a step."""

    output: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    values: np.ndarray


class ActorCritic(ABC):
    """The policy and value networks.

    :param architecture: architecture of the networks
    :param arrays: values of the parameters by their names in the policy
    """

    def __init__(self, architecture: Architecture, arrays: Mapping[str, np.ndarray]):
        self._architecture = architecture
        self._log_std = architecture.log_std_of(arrays)

    @abstractmethod
    def action_output(self, features: np.ndarray) -> np.ndarray:
        """Return the output of the policy network for features of shape ``(batch, inputs)``."""

    @abstractmethod
    def action_outputs(self, features: np.ndarray) -> np.ndarray:
        """Like :meth:`action_output`, for any number of states."""

    @abstractmethod
    def values(self, features: np.ndarray) -> np.ndarray:
        """Return the values, shape ``(batch, 1)``."""

    def distribution(self, output: np.ndarray) -> Distribution:
        """Return the action distributions for the result of :meth:`action_output`."""
        return self._architecture.distribution(output, *self._log_std)

    def own_parameters(self) -> tuple[np.ndarray, ...]:
        """Return a copy of the distribution's own parameters: the logarithm of the standard deviation, or nothing."""
        return tuple(array.copy() for array in self._log_std)

    def snapshot(self, output: np.ndarray, own_parameters: tuple[np.ndarray, ...] | None = None) -> Distribution:
        """Like :meth:`distribution`, but later changes of the parameters do not affect the result.

        :param own_parameters: an earlier result of :meth:`own_parameters`; ``None`` takes the current one
        """
        own_parameters = self.own_parameters() if own_parameters is None else own_parameters
        return self._architecture.distribution(output, *own_parameters)

    def act(self, features: np.ndarray, noise: Any, masks: np.ndarray | None = None) -> Acted:
        """Draw actions.

        :param noise: the noise of one step, from :meth:`.Distribution.in_steps`
        :param masks: which actions are allowed; ``None`` if all are
        :raises NonFiniteError: if the policy network's output is not finite
        """
        output = masked(self.action_output(features), masks)
        actions, log_probs = self.distribution(output).sample(noise)
        return Acted(output, actions, log_probs, self.values(features))


class ArrayActorCritic(ActorCritic):
    """The policy and value networks over arrays."""

    def __init__(self, architecture: Architecture, arrays: Mapping[str, np.ndarray]):
        super().__init__(architecture, arrays)
        self._actor_trunk = Mlp(linear_layers(architecture.actor, arrays), architecture.activation)
        self._critic_trunk = Mlp(linear_layers(architecture.critic, arrays), architecture.activation)
        self._action_net, self._value_net = linear_layers(["action_net", "value_net"], arrays)

    def action_output(self, features: np.ndarray) -> np.ndarray:
        return self._architecture.output(self._action_net, self._actor_trunk.forward(features)[-1])

    def action_outputs(self, features: np.ndarray) -> np.ndarray:
        chunks = [features[start : start + ROWS_AT_ONCE] for start in range(0, len(features), ROWS_AT_ONCE)]
        return np.concatenate([*map(self.action_output, chunks)])

    def values(self, features: np.ndarray) -> np.ndarray:
        return self._value_net.forward(self._critic_trunk.forward(features)[-1])


# Creates networks from their architecture and their parameters by name.
MakeNetworks = Callable[[Architecture, Mapping[str, np.ndarray]], ActorCritic]


def linear_layers(names: Sequence[str], arrays: Mapping[str, np.ndarray]) -> list[Linear]:
    """Return the layers with these names."""
    return [Linear(arrays[f"{name}.weight"], arrays[f"{name}.bias"][..., None, :]) for name in names]
