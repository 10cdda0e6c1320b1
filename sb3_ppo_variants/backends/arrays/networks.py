"""The networks of SB3's ``ActorCriticPolicy`` over arrays."""

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
# Enough to keep BLAS busy, few enough for the activations to stay in the cache.
ROWS_AT_ONCE = 512
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
    noise: Callable[[tuple[int, int, int], th.dtype], Iterable[Any]]
    """What ``sample`` makes actions of, from torch's generator; takes steps, states of each, outputs."""
    sizes: list[int]
    """Outputs of the policy network for each part of an action that is chosen independently as a whole."""

    @classmethod
    def of(cls, policy: ActorCriticPolicy) -> "Architecture":
        """The architecture of a policy in whose way there is no :func:`~.obstacles.obstacle`."""
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
        """What the distributions are made of, for the last hidden layer."""
        output = action_net.forward(latent)
        return np.concatenate([output, latent], axis=1) if self.kind.sees_latent else output

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


class _Drawn(NamedTuple):
    """The part of an :class:`Architecture` that is of its distribution."""

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
    # SB3's and sb3-contrib's multi-categorical ones, of which a masked Bernoulli distribution is one.
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
        return self._architecture.output(self._action_net, self._actor_trunk.forward(features)[-1])

    def action_outputs(self, features: np.ndarray) -> np.ndarray:
        """The same for any number of states."""
        chunks = [features[start : start + ROWS_AT_ONCE] for start in range(0, len(features), ROWS_AT_ONCE)]
        return np.concatenate([*map(self.action_output, chunks)])

    def distribution(self, output: np.ndarray) -> Distribution:
        """The distributions of actions, for what :meth:`action_output` returned."""
        return self._architecture.distribution(output, *self._log_std)

    def snapshot(self, output: np.ndarray) -> Distribution:
        """The same, whatever becomes of the parameters."""
        return self._architecture.distribution(output, *(array.copy() for array in self._log_std))

    def values(self, features: np.ndarray) -> np.ndarray:
        """The values, shape ``(batch, 1)``."""
        return self._value_net.forward(self._critic_trunk.forward(features)[-1])

    def act(self, features: np.ndarray, noise: Any, masks: np.ndarray | None = None) -> Acted:
        """Draw actions.

        :param noise: that of a step, from :meth:`.Distribution.in_steps`
        :param masks: which actions are allowed; ``None`` if all are
        :raises NonFiniteError: if the policy network's output is not finite
        """
        output = masked(self.action_output(features), masks)
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
