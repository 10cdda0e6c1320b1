"""The two networks during an update: forward, backward, and all their parameters in one vector."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from sb3_ppo_variants.backends.arrays.distribution import Distribution
from sb3_ppo_variants.backends.arrays.masks import masked
from sb3_ppo_variants.backends.arrays.mlp import Linear, Mlp
from sb3_ppo_variants.backends.arrays.networks import (
    ActorCritic,
    Architecture,
    ArrayActorCritic,
    MakeNetworks,
    linear_layers,
)
from sb3_ppo_variants.backends.arrays.parameters import Layout
from sb3_ppo_variants.updates.plan import UpdatePlan

# The names of the weights and of the biases of two layers, one of the actor and one of the critic.
Pair = tuple[tuple[str, str], tuple[str, str]]


class Layers(NamedTuple):
    """The networks as views of one vector: of the parameters, or of their gradients."""

    trunks: list[list[Linear]]
    """The hidden layers: one list for both networks stacked, or one list each for the actor and the critic."""
    action_net: Linear
    value_net: Linear
    log_std: tuple[np.ndarray, ...]


class TrainedNetworks:
    """A policy's networks with the gradients of their parameters.

    Layers and networks are created on first use, because not every backend needs all of them.

    :param plan: provides the initial policy, and for each descent the parameters that it trains
    :param make: creates the networks that evaluate the policy outside of :meth:`forward`
    """

    def __init__(self, plan: UpdatePlan, make: MakeNetworks = ArrayActorCritic):
        parts = [descent.parameters for descent in plan.descents]
        self.architecture = Architecture.of(plan.kind.policy)
        # If the hidden layers have the same shapes, one product computes a layer of both networks.
        self._pairs = _pairs(self.architecture, plan.parameters) if len(parts) == 1 else []
        self.layout = Layout(_in_order(plan.parameters, parts, self._pairs))
        self.vector = self.layout.gather(self.layout.parameters)
        self.gradient = np.zeros_like(self.vector)
        self._make = make
        self._outputs: dict[int, list[np.ndarray]] = {}

    @cached_property
    def _layers(self) -> Layers:
        return self._layers_of(self.vector)

    @cached_property
    def _gradients(self) -> Layers:
        return self._layers_of(self.gradient)

    @cached_property
    def _trunks(self) -> list[Mlp]:
        return [Mlp(layers, self.architecture.activation) for layers in self._layers.trunks]

    @cached_property
    def _actor_critic(self) -> ActorCritic:
        return self._make(self.architecture, self.layout.views(self.vector))

    @property
    def action_dtype(self) -> np.dtype:
        """The type of the actions that the distributions take."""
        return np.dtype(np.int64) if self.architecture.kind.takes_integers else self.vector.dtype

    def distribution_of(self, features: np.ndarray, masks: np.ndarray | None) -> Distribution:
        """Return the current action distributions for the features of any number of states, and their masks."""
        return self._actor_critic.snapshot(masked(self._actor_critic.action_outputs(features), masks))

    def _layers_of(self, vector: np.ndarray) -> Layers:
        views, beside = self.layout.views(vector), self.layout.side_by_side
        architecture = self.architecture
        if self._pairs:
            trunks = [[Linear(beside(vector, w), beside(vector, b)[:, None]) for w, b in self._pairs]]
        else:
            trunks = [linear_layers(architecture.actor, views), linear_layers(architecture.critic, views)]
        action_net, value_net = linear_layers(["action_net", "value_net"], views)
        return Layers(trunks, action_net, value_net, architecture.log_std_of(views))

    def forward(self, features: np.ndarray, actor: bool = True, critic: bool = True) -> None:
        """Compute the hidden layers of both networks, or of one of them."""
        wanted = [0] if self._pairs else [i for i, own in enumerate((actor, critic)) if own]
        self._outputs = {i: self._trunks[i].forward(features) for i in wanted}

    def _latent(self, network: int) -> np.ndarray:
        return self._outputs[0][-1][network] if self._pairs else self._outputs[network][-1]

    def distribution(self, masks: np.ndarray | None) -> Distribution:
        """Return the action distributions for the features given to :meth:`forward`, and their masks."""
        output = self.architecture.output(self._layers.action_net, self._latent(0))
        return self.architecture.distribution(masked(output, masks), *self._layers.log_std)

    def values(self) -> np.ndarray:
        """Return the values, shape ``(batch,)``, for the features given to :meth:`forward`."""
        return self._layers.value_net.forward(self._latent(1))[:, 0]

    def backward(self, d_distribution: tuple[np.ndarray, ...] | None, d_values: np.ndarray | None) -> None:
        """Write the gradients for the parameters of the networks that :meth:`forward` has computed.

        :param d_distribution: dL/d(network output), for gSDE possibly concatenated with dL/d(last hidden layer), and
            dL/d(log std) if the distribution has this parameter
        :param d_values: dL/d(values), shape ``(batch,)``
        """
        layers, gradients = self._layers, self._gradients
        d_latent: np.ndarray | None = None
        d_heads: list[tuple[int, np.ndarray, Linear, Linear]] = []
        if d_distribution is not None:
            d_output, *d_log_std = d_distribution
            width = len(layers.action_net.weight)
            d_output, d_latent = d_output[:, :width], d_output[:, width:]
            for into, d in zip(gradients.log_std, d_log_std, strict=True):
                into[...] = d
            d_heads.append((0, d_output, layers.action_net, gradients.action_net))
        if d_values is not None:
            d_heads.append((1, d_values[:, None], layers.value_net, gradients.value_net))
        d_latents: Any = self._latent_gradients()
        for network, d, head, into_head in d_heads:
            latent = self._latent(network)
            head.gradient(latent, d, into=into_head)
            # With a single output the product is an outer product, for which broadcasting is cheaper.
            product = np.multiply if d.shape[1] == 1 else np.matmul
            product(d, head.weight, out=d_latents[network])
        if d_latent is not None and d_latent.size:
            d_latents[0] += d_latent
        for i, outputs in self._outputs.items():
            self._trunks[i].gradient(outputs, d_latents if self._pairs else d_latents[i], into=gradients.trunks[i])

    def _latent_gradients(self) -> Any:
        """Return arrays for dL/d(latent) by network, as one array if both networks are computed together."""
        if self._pairs:
            return np.empty_like(self._outputs[0][-1])
        return {i: np.empty_like(outputs[-1]) for i, outputs in self._outputs.items()}


def _in_order(
    named: Mapping[str, nn.Parameter], parts: Sequence[Sequence[nn.Parameter]], pairs: Sequence[Pair]
) -> dict[str, nn.Parameter]:
    """Return a policy's parameters by name, pairs first and each part contiguous."""
    part_of = {id(parameter): number for number, part in enumerate(parts) for parameter in part}
    first = [name for pair in pairs for names in pair for name in names]
    names = [*first, *(name for name in named if name not in first)]
    return {name: named[name] for name in sorted(names, key=lambda name: part_of[id(named[name])])}


def _pairs(architecture: Architecture, named: Mapping[str, nn.Parameter]) -> list[Pair]:
    """Return the layers of actor and critic that can be computed together."""
    shapes = [[named[f"{name}.weight"].shape for name in names] for names in (architecture.actor, architecture.critic)]
    if shapes[0] != shapes[1]:
        return []
    return [
        ((f"{actor}.weight", f"{critic}.weight"), (f"{actor}.bias", f"{critic}.bias"))
        for actor, critic in zip(architecture.actor, architecture.critic, strict=True)
    ]
