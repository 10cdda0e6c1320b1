"""The networks of SB3's ``ActorCriticPolicy`` in the form that the library takes."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import StateDependentNoiseDistribution, TanhBijector
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, MlpExtractor
from torch import nn

from sb3_ppo_variants.collector import Observations
from sb3_ppo_variants.engines.native import structures
from sb3_ppo_variants.engines.native.distributions import Drawn, drawn_by
from sb3_ppo_variants.engines.native.library import library_in_use
from sb3_ppo_variants.engines.recognised import ObstacleError
from sb3_ppo_variants.layout import AnySpace, parts_of


def _keys_of(extractor: nn.Module) -> list[str] | None:
    """Find the keys of the observations that a features extractor combines."""
    return [*extractor.extractors] if type(extractor) is CombinedExtractor else None


class Features:
    """Computes the features of SB3's ``FlattenExtractor``, or of a ``CombinedExtractor`` without images.

    If actor and critic see different observations, the features of the actor come first, and then those of the critic.

    :param policy: the policy
    :raises ObstacleError: if its features come from something else
    """

    def __init__(self, policy: ActorCriticPolicy):
        self._space, self._normalize_images = policy.observation_space, policy.normalize_images
        # A policy whose actor and critic share their features uses the first of them to act.
        extractors = policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor
        for extractor in extractors:
            for part in [extractor] if type(extractor) is not CombinedExtractor else extractor.extractors.values():
                flatten = part.flatten if type(part) is FlattenExtractor else part
                if type(flatten) is not nn.Flatten:
                    raise ObstacleError(f"features come from a {type(flatten).__name__}")
        acting, actor, critic = map(_keys_of, extractors)
        self._keys = actor
        if not acting == actor == critic:
            if acting != actor or actor is None or critic is None or policy.share_features_extractor:
                raise ObstacleError("actor and critic have different features")
            self._keys = [*actor, *critic]
        if any(is_image_space(part) for _, part in parts_of(self._space)):
            raise ObstacleError("observations are images")

    def compute(self, observations: Observations, dtype: np.dtype) -> np.ndarray:
        """Compute contiguous features of shape ``(batch, inputs)``.

        As in SB3, discrete values become one-hot vectors, and others are rounded to single precision.
        """
        if self._keys is None:
            numbers = self._flatten(observations, self._space)
        else:
            assert isinstance(self._space, spaces.Dict)
            parts = [self._flatten(observations[key], self._space[key]) for key in self._keys]
            numbers = np.concatenate(parts, axis=1)
        features = np.ascontiguousarray(numbers, dtype)
        return features if features.flags.aligned else features.copy()

    def _flatten(self, observations: np.ndarray, space: AnySpace) -> np.ndarray:
        if observations.dtype.kind == "f" and isinstance(space, spaces.Box):
            return observations.reshape(len(observations), -1).astype(np.float32, copy=False)
        tensor = preprocess_obs(th.as_tensor(observations, device="cpu"), space, self._normalize_images)
        assert isinstance(tensor, th.Tensor)
        return tensor.flatten(1).numpy()


Arrays = Mapping[str, np.ndarray]
NO_ARRAYS: Arrays = {}


def arrays_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, np.ndarray]:
    """View parameters as arrays, by name."""
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


ACTIVATIONS: Mapping[type[nn.Module], str] = {nn.Tanh: "TANH", nn.ReLU: "RELU"}
# Stands for actions that are not squashed.
NOT_SQUASHED = -1.0


class StateDependence(NamedTuple):
    """SB3's options of gSDE; all zeros for other distributions."""

    log_std_columns: int = 0
    use_expln: int = 0
    learn_features: int = 0
    epsilon: float = 0.0
    squash_epsilon: float = NOT_SQUASHED

    @classmethod
    def of(cls, distribution: StateDependentNoiseDistribution, outputs: int) -> "StateDependence":
        """Return the options of a distribution over actions of ``outputs`` dimensions."""
        squash = NOT_SQUASHED
        if distribution.bijector is not None:
            if type(distribution.bijector) is not TanhBijector:
                raise ObstacleError(f"actions are squashed by a {type(distribution.bijector).__name__}")
            squash = distribution.bijector.epsilon
        columns = outputs if distribution.full_std else 1
        flags = int(distribution.use_expln), int(distribution.learn_features)  # They may be NumPy's.
        return cls(columns, *flags, distribution.epsilon, squash)


@dataclass(frozen=True)
class Architecture:
    """The names of a policy's layers, its activation and its distribution.

    :param activation: its name in ``interface.hpp``
    :param drawn: how actions are drawn from the output of the policy network
    :param inputs: the number of features
    :param of_critic: the first feature of the critic; 0 if actor and critic have the same features
    """

    actor: list[str]
    critic: list[str]
    activation: str
    drawn: Drawn
    state_dependence: StateDependence
    inputs: int
    of_critic: int = 0

    @classmethod
    def of(cls, policy: ActorCriticPolicy) -> "Architecture":
        """Return the architecture of a policy.

        :raises ObstacleError: if the library does not compute such networks, or such distributions
        """
        distribution, extractor = policy.action_dist, policy.mlp_extractor
        drawn = drawn_by(distribution)
        if type(extractor) is not MlpExtractor:
            raise ObstacleError(f"hidden layers are in a {type(extractor).__name__}")
        actor, activations = _find_layers("policy_net", extractor.policy_net, "action_net", policy.action_net)
        critic, others = _find_layers("value_net", extractor.value_net, "value_net", policy.value_net)
        activations |= others
        if len(activations) > 1 or not activations <= ACTIVATIONS.keys():
            raise ObstacleError(f"the activation is {', '.join(sorted(each.__name__ for each in activations))}")
        (activation,) = map(ACTIVATIONS.__getitem__, activations or {nn.Tanh})  # Without hidden layers it is not used.
        dependence = StateDependence()
        if isinstance(distribution, StateDependentNoiseDistribution):
            dependence = StateDependence.of(distribution, drawn.outputs)
        of_actor, of_critic = policy.pi_features_extractor, policy.vf_features_extractor
        first = 0 if _keys_of(of_actor) == _keys_of(of_critic) else of_actor.features_dim
        return cls(actor, critic, activation, drawn, dependence, first + of_critic.features_dim, first)

    def trained(self, of_policy: bool, of_value: bool) -> list[set[str]]:
        """Return the names of the parameters of the actor, the critic or both, each in a set of its own."""
        actor, critic = (
            {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
            for layers in (self.actor, self.critic)
        )
        actor |= {"log_std"} if self.drawn.n_stds else set()
        return [actor] * of_policy + [critic] * of_value

    def structure(self, arrays: Arrays, gradients: Arrays = NO_ARRAYS) -> structures.Networks:
        """Fill the structure of networks with these parameters, and with arrays for their gradients, by name.

        :raises ObstacleError: if the parameters are not those of these networks, or have other shapes
        """
        names = {f"{layer}.{kind}" for layer in (*self.actor, *self.critic) for kind in ("weight", "bias")}
        if not names <= arrays.keys():
            raise ObstacleError("layers share parameters")
        if arrays.keys() - names - {"log_std"}:
            raise ObstacleError("the policy has parameters outside its layers")
        drawn = self.drawn
        if drawn.n_stds and "log_std" not in arrays:
            raise ObstacleError("log_std is not a parameter")
        actor = _layers(self.actor, self.of_critic or self.inputs, arrays, gradients)
        critic = _layers(self.critic, self.inputs - self.of_critic, arrays, gradients)
        if critic[-1].outputs != 1:
            raise ObstacleError(f"the value network has {critic[-1].outputs} outputs")
        if actor[-1].outputs != drawn.outputs:
            raise ObstacleError(f"the policy network has {actor[-1].outputs} outputs instead of {drawn.outputs}")
        log_std = arrays["log_std"] if drawn.n_stds else None
        columns = self.state_dependence.log_std_columns
        if log_std is not None and log_std.shape != ((actor[-1].inputs, columns) if columns else (drawn.n_stds,)):
            raise ObstacleError(f"log_std has the shape {log_std.shape}")
        networks = actor, critic, len(actor), len(critic), self.inputs, self.of_critic
        stds = {"log_std": log_std, "d_log_std": gradients.get("log_std") if drawn.n_stds else None}
        activation = structures.CONSTANTS["Activations"][self.activation]
        return structures.Networks(*networks, activation, **drawn.fields(), **stds, **self.state_dependence._asdict())


def _find_layers(trunk: str, hidden: nn.Module, head: str, last: nn.Module) -> tuple[list[str], set[type[nn.Module]]]:
    """Find the names of the layers of a network, and the activations between them."""
    if type(hidden) is not nn.Sequential:
        raise ObstacleError(f"hidden layers are in a {type(hidden).__name__}")
    modules = [*hidden, last]
    for layer in modules[::2]:
        if type(layer) is not nn.Linear or layer.bias is None:
            raise ObstacleError(f"the networks have a {layer} where a layer with weights and biases is expected")
    names = [f"mlp_extractor.{trunk}.{i}" for i in range(0, len(hidden), 2)]
    return [*names, head], {*map(type, modules[1::2])}


def _layers(names: Sequence[str], size: int, arrays: Arrays, gradients: Arrays) -> "ctypes.Array[structures.Layer]":
    """Return the layers with these names, the first of which takes inputs of this size."""
    layers = []
    for name in names:
        weight, bias = arrays[f"{name}.weight"], arrays[f"{name}.bias"]
        # The library does not check that each layer takes what the one before it returns.
        if weight.shape[1:] != (size,) or weight.shape[:1] != bias.shape:
            raise ObstacleError(f"a layer has weights of shape {weight.shape} for {size} inputs")
        d_weight, d_bias = gradients.get(f"{name}.weight"), gradients.get(f"{name}.bias")
        layers.append(structures.Layer(weight, bias, d_weight, d_bias, size, len(bias)))
        size = len(bias)
    return structures.as_array(layers)


def values_of(networks: structures.Networks, features: np.ndarray) -> np.ndarray:
    """Compute the values of any number of states, shape ``(n, 1)``; see :func:`run_acting`."""
    values = np.empty((len(features), 1), features.dtype)
    run_acting(networks, features.dtype, features=features, values=values, rows=len(features))
    return values


def run_acting(networks: structures.Networks, dtype: np.dtype, **fields: structures.FieldValue) -> None:
    """Call the library once with these fields of :class:`~.structures.Acting`; the others are null."""
    library_in_use().acting(dtype, networks, structures.Acting(**fields))()
