"""The two networks during an update: forward, backward, and all their parameters in one vector."""

from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.fast.distributions import Distribution
from sb3_ppo_variants.fast.mlp import Linear, Mlp
from sb3_ppo_variants.fast.networks import ActorCritic, Architecture, linear_layers
from sb3_ppo_variants.fast.parameters import Layout

# Enough to keep BLAS busy, few enough for the activations to stay in the cache.
ROWS_AT_ONCE = 512


class Layers(NamedTuple):
    """The networks as views of one vector: of the parameters, or of their gradients."""

    trunks: list[list[Linear]]
    """The hidden layers of both networks side by side, or those of the actor and those of the critic."""
    action_net: Linear
    value_net: Linear
    log_std: tuple[np.ndarray, ...]


class TrainedNetworks:
    """A policy's networks with the gradients of their parameters.

    Where the hidden layers of the two networks have the same shapes, one product computes a layer of both.

    :param policy: the policy to begin with
    """

    def __init__(self, policy: ActorCriticPolicy):
        self._architecture = Architecture.of(policy)
        self._pairs = _pairs(self._architecture, policy)
        self.layout = Layout(policy, first=[name for pair in self._pairs for names in pair for name in names])
        self.vector = self.layout.gather(self.layout.parameters)
        self.gradient = np.zeros_like(self.vector)
        self._layers = self._layers_of(self.vector)
        self._gradients = self._layers_of(self.gradient)
        self._trunks = [Mlp(layers, self._architecture.activation) for layers in self._layers.trunks]
        self._outputs: list[list[np.ndarray]] = []
        self._actor_critic = ActorCritic(self._architecture, self.layout.views(self.vector))

    @property
    def action_dtype(self) -> np.dtype:
        """The type in which the distributions take actions."""
        return np.dtype(np.int64) if self._architecture.kind.takes_integers else self.vector.dtype

    def distribution_of(self, features: np.ndarray) -> Distribution:
        """The distributions of actions as they are now, for features of any number of states."""
        chunks = [features[start : start + ROWS_AT_ONCE] for start in range(0, len(features), ROWS_AT_ONCE)]
        output = np.concatenate([self._actor_critic.action_output(chunk) for chunk in chunks])
        return self._architecture.distribution(output, *(array.copy() for array in self._layers.log_std))

    def _layers_of(self, vector: np.ndarray) -> Layers:
        views, beside = self.layout.views(vector), self.layout.side_by_side
        architecture = self._architecture
        if self._pairs:
            trunks = [[Linear(beside(vector, w), beside(vector, b)[:, None]) for w, b in self._pairs]]
        else:
            trunks = [linear_layers(architecture.actor, views), linear_layers(architecture.critic, views)]
        action_net, value_net = linear_layers(["action_net", "value_net"], views)
        return Layers(trunks, action_net, value_net, architecture.log_std_of(views))

    def _latents(self) -> list[np.ndarray]:
        last = [outputs[-1] for outputs in self._outputs]
        return list(last[0]) if self._pairs else last

    def forward(self, features: np.ndarray) -> tuple[Distribution, np.ndarray]:
        """The distributions of actions and the values, shape ``(batch,)``."""
        self._outputs = [trunk.forward(features) for trunk in self._trunks]
        actor, critic = self._latents()
        output = self._layers.action_net.forward(actor)
        values = self._layers.value_net.forward(critic)
        return self._architecture.distribution(output, *self._layers.log_std), values[:, 0]

    def backward(self, d_distribution: tuple[np.ndarray, ...], d_values: np.ndarray) -> None:
        """Write the gradients of all parameters, for the features that :meth:`forward` was given last.

        :param d_distribution: dL/d(network output) and, if there is one, dL/d(log std)
        :param d_values: dL/d(values), shape ``(batch,)``
        """
        layers, gradients = self._layers, self._gradients
        d_output, *d_log_std = d_distribution
        for into, d in zip(gradients.log_std, d_log_std, strict=True):
            into[...] = d

        latents = self._latents()
        layers.action_net.gradient(latents[0], d_output, into=gradients.action_net)
        layers.value_net.gradient(latents[1], d_values[:, None], into=gradients.value_net)
        both: Any = np.empty((2, *latents[0].shape), d_output.dtype) if self._pairs else [*map(np.empty_like, latents)]
        np.matmul(d_output, layers.action_net.weight, out=both[0])
        np.multiply(d_values[:, None], layers.value_net.weight, out=both[1])
        d_latents = [both] if self._pairs else both
        for trunk, outputs, d, trunk_gradients in zip(
            self._trunks, self._outputs, d_latents, gradients.trunks, strict=True
        ):
            trunk.gradient(outputs, d, into=trunk_gradients)


def _pairs(architecture: Architecture, policy: ActorCriticPolicy) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """The names of the weights, and of the biases, of each two layers that can be computed side by side."""
    shapes = [
        [policy.get_submodule(name).weight.shape for name in names]
        for names in (architecture.actor, architecture.critic)
    ]
    if shapes[0] != shapes[1]:
        return []
    return [
        ((f"{actor}.weight", f"{critic}.weight"), (f"{actor}.bias", f"{critic}.bias"))
        for actor, critic in zip(architecture.actor, architecture.critic, strict=True)
    ]
