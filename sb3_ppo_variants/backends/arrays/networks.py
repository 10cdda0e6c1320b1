"""The networks of SB3's ``ActorCriticPolicy`` over arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from sb3_ppo_variants.backends.arrays.discrete import Bernoulli, Categorical, MultiCategorical
from sb3_ppo_variants.backends.arrays.distribution import Distribution
from sb3_ppo_variants.backends.arrays.gaussian import DiagGaussian
from sb3_ppo_variants.backends.arrays.mlp import RELU, TANH, Activation, Linear, Mlp

ACTIVATIONS: dict[type[nn.Module], Activation] = {nn.Tanh: TANH, nn.ReLU: RELU}
ACTOR, CRITIC = "mlp_extractor.policy_net", "mlp_extractor.value_net"


@dataclass(frozen=True)
class Architecture:
    """What an SB3 policy is made of: the names of its layers' parameters, its activation and its distribution."""

    actor: list[str]
    critic: list[str]
    activation: Activation
    log_std: str | None
    kind: type[Distribution]
    distribution: Callable[..., Distribution]
    sizes: list[int]
    """Outputs of the policy network for each part of an action that is chosen independently as a whole."""

    @classmethod
    def of(cls, policy: ActorCriticPolicy) -> "Architecture":
        """The architecture of a policy in whose way there is no :func:`~.obstacles.obstacle`."""
        kind, distribution = _distribution(policy.action_dist)
        return cls(
            actor=_hidden_layers(policy, ACTOR),
            critic=_hidden_layers(policy, CRITIC),
            activation=_activation(policy),
            log_std="log_std" if kind is DiagGaussian else None,
            kind=kind,
            distribution=distribution,
            sizes=_sizes(policy),
        )

    def log_std_of(self, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """The distribution's own parameter, if it has one."""
        return () if self.log_std is None else (arrays[self.log_std],)


def _hidden_layers(policy: ActorCriticPolicy, network: str) -> list[str]:
    modules: Any = policy.get_submodule(network)
    return [f"{network}.{i}" for i, module in enumerate(modules) if isinstance(module, nn.Linear)]


def _activation(policy: ActorCriticPolicy) -> Activation:
    extractor: Any = policy.mlp_extractor
    kinds = [type(module) for module in (*extractor.policy_net, *extractor.value_net) if type(module) in ACTIVATIONS]
    return ACTIVATIONS[kinds[0]] if kinds else TANH


def _distribution(distribution: Any) -> tuple[type[Distribution], Callable[..., Distribution]]:
    if isinstance(distribution, DiagGaussianDistribution):
        return DiagGaussian, DiagGaussian
    if isinstance(distribution, CategoricalDistribution):
        return Categorical, Categorical
    if isinstance(distribution, MultiCategoricalDistribution):
        return MultiCategorical, partial(MultiCategorical.of, sizes=[int(size) for size in distribution.action_dims])
    assert isinstance(distribution, BernoulliDistribution)
    return Bernoulli, Bernoulli


def _sizes(policy: ActorCriticPolicy) -> list[int]:
    distribution: Any = policy.action_dist
    if isinstance(distribution, MultiCategoricalDistribution):
        return [int(size) for size in distribution.action_dims]
    return [len(policy.get_parameter("action_net.bias"))]


class Acted(NamedTuple):
    """What came of a step."""

    output: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    values: np.ndarray


class ActorCritic:
    """The policy and the value network over arrays.

    :param architecture: what the networks are made of
    :param arrays: the parameters' values by their names in the policy
    """

    def __init__(self, architecture: Architecture, arrays: Mapping[str, np.ndarray]):
        self._architecture = architecture
        self._actor_trunk = Mlp(linear_layers(architecture.actor, arrays), architecture.activation)
        self._critic_trunk = Mlp(linear_layers(architecture.critic, arrays), architecture.activation)
        self._action_net, self._value_net = linear_layers(["action_net", "value_net"], arrays)
        self._log_std = architecture.log_std_of(arrays)

    def action_output(self, features: np.ndarray) -> np.ndarray:
        """The output of the policy network, for features of shape ``(batch, inputs)``."""
        return self._action_net.forward(self._actor_trunk.forward(features)[-1])

    def distribution(self, output: np.ndarray) -> Distribution:
        """The distributions of actions, for what :meth:`action_output` returned."""
        return self._architecture.distribution(output, *self._log_std)

    def snapshot(self, output: np.ndarray) -> Distribution:
        """The same, whatever becomes of the parameters."""
        return self._architecture.distribution(output, *(array.copy() for array in self._log_std))

    def values(self, features: np.ndarray) -> np.ndarray:
        """The values, shape ``(batch, 1)``."""
        return self._value_net.forward(self._critic_trunk.forward(features)[-1])

    def act(self, features: np.ndarray, noise: Any) -> Acted:
        """Draw actions.

        :param noise: that of a step from the distribution's :meth:`~.distribution.Distribution.noise`
        :raises NonFiniteError: if the policy network's output is not finite
        """
        output = self.action_output(features)
        actions, log_probs = self.distribution(output).sample(noise)
        return Acted(output, actions, log_probs, self.values(features))


# Makes networks of what they are made of and of their parameters by name.
MakeNetworks = Callable[[Architecture, Mapping[str, np.ndarray]], ActorCritic]


def linear_layers(names: Sequence[str], arrays: Mapping[str, np.ndarray]) -> list[Linear]:
    """The layers of these names."""
    return [Linear(arrays[f"{name}.weight"], arrays[f"{name}.bias"][..., None, :]) for name in names]


def parameter_views(policy: ActorCriticPolicy) -> dict[str, np.ndarray]:
    """The values of a policy's parameters by name, sharing memory with them."""
    return {name: parameter.detach().numpy() for name, parameter in policy.named_parameters()}
