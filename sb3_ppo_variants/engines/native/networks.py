"""SB3's policies in the form that the library takes: features, networks, and the distribution of actions."""

from collections.abc import Iterable, Mapping, Sequence
from ctypes import Array
from typing import Any, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
    TanhBijector,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, MlpExtractor
from torch import nn
from torch.nn import functional as F

from sb3_ppo_variants import distributions
from sb3_ppo_variants.collector import Observations
from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.recognised import ObstacleError
from sb3_ppo_variants.hybrid import Condition, HybridDistribution
from sb3_ppo_variants.kl import Parameters, divergences_of, is_masked
from sb3_ppo_variants.layout import AnySpace, parts_of

Arrays: TypeAlias = Mapping[str, np.ndarray]
# Numbers with a row for each state.
Rows: TypeAlias = np.ndarray | th.Tensor
NO_ARRAYS: Arrays = {}
ACTIVATIONS: Mapping[type[nn.Module], str] = {nn.Tanh: "TANH", nn.ReLU: "RELU"}
# The distributions, by their names in interface.hpp.
DISTRIBUTIONS: Mapping[type[Distribution], str] = {
    BernoulliDistribution: "BERNOULLI",
    CategoricalDistribution: "CATEGORICAL",
    DiagGaussianDistribution: "GAUSSIAN",
    MultiCategoricalDistribution: "CATEGORICAL",
    StateDependentNoiseDistribution: "STATE_DEPENDENT",
    distributions.BetaDistribution: "BETA",
    distributions.SquashedGaussianDistribution: "SQUASHED_GAUSSIAN",
    distributions.SquashedStateGaussianDistribution: "SQUASHED_STATE_GAUSSIAN",
    distributions.StateGaussianDistribution: "STATE_GAUSSIAN",
}
# Those with one standard deviation for all states, those of which two outputs belong to each dimension, those whose
# noise is normal, and those that a product may have as factors.
WITH_LOG_STD = {"GAUSSIAN", "SQUASHED_GAUSSIAN"}
OF_TWO_OUTPUTS = {"STATE_GAUSSIAN", "SQUASHED_STATE_GAUSSIAN", "BETA"}
OF_NORMAL_NOISE = {"GAUSSIAN", "STATE_GAUSSIAN", "SQUASHED_GAUSSIAN", "SQUASHED_STATE_GAUSSIAN"}
FACTORS = {"GAUSSIAN", "CATEGORICAL", "BERNOULLI"}


class ActionPart:
    """A distribution of SB3, sb3-contrib or this package: of all actions, or of a part of hybrid ones.

    :raises ObstacleError: if the library does not compute it
    """

    def __init__(self, distribution: Distribution):
        kind = "CATEGORICAL" if is_masked(distribution) else DISTRIBUTIONS.get(type(distribution))
        if kind is None:
            raise ObstacleError(f"actions are drawn from a {type(distribution).__name__}")
        if not divergences_of(distribution).built_in:
            raise ObstacleError(f"a KL was registered for {type(distribution).__name__}")
        # SB3's and sb3-contrib's distributions have either a size or sizes, and Bernoulli's calls its size sizes.
        sizes = getattr(distribution, "action_dims" if hasattr(distribution, "action_dims") else "action_dim")
        self.kind, self.sizes = kind, np.ravel(np.array(sizes, np.int64))
        size = int(self.sizes.sum())
        self.outputs = 2 * size if kind in OF_TWO_OUTPUTS else size
        self.action_size = len(self.sizes) if kind == "CATEGORICAL" else size
        self.n_stds = self.outputs if kind in WITH_LOG_STD or kind == "STATE_DEPENDENT" else 0
        self.fields: dict[str, library.FieldValue] = {
            "distribution": library.CONSTANTS["Distributions"][kind],
            "parts": self.sizes,
            "n_parts": len(self.sizes),
        }
        # For each of its parameters, whether all states share one row.
        if kind == "CATEGORICAL":
            self.shared = [False] * len(self.sizes)
        else:
            self.shared = [False] if kind == "BERNOULLI" else [False, kind in WITH_LOG_STD]

    def draw_noise(self, n_steps: int, n_envs: int, dtype: th.dtype) -> np.ndarray:
        """Draw the random numbers of a rollout; see :class:`NativeDistribution`."""
        if self.kind in OF_NORMAL_NOISE:
            return th.randn((n_steps, n_envs, self.action_size), dtype=dtype, device="cpu").numpy()
        shape = (n_steps, n_envs, self.outputs)
        if self.kind == "CATEGORICAL":
            return -th.empty(shape, dtype=dtype, device="cpu").exponential_().log_().numpy()
        return th.rand(shape, dtype=dtype, device="cpu").numpy()

    def parameters(self, outputs: th.Tensor, std: th.Tensor | None) -> Parameters:
        """Return the parameters of distributions; see :class:`NativeDistribution`."""
        if self.n_stds:
            assert std is not None
            return outputs, std
        if self.kind in OF_TWO_OUTPUTS:
            first, second = outputs.chunk(2, dim=1)
            return (F.softplus(first) + 1, F.softplus(second) + 1) if self.kind == "BETA" else (first, second.exp())
        if self.kind == "BERNOULLI":
            return (outputs,)
        return tuple(part.log_softmax(dim=1) for part in th.split(outputs, self.sizes.tolist(), dim=1))


class NativeDistribution:
    """The distribution of actions: a single part, or a product of independent ones, each over columns of its own.

    :raises ObstacleError: if the library does not compute it
    """

    def __init__(self, distribution: Distribution):
        hybrid = distribution if isinstance(distribution, HybridDistribution) else None
        if hybrid is not None and type(hybrid) is not HybridDistribution:
            raise ObstacleError(f"actions are drawn from a {type(hybrid).__name__}")
        self.parts = [*map(ActionPart, [distribution] if hybrid is None else hybrid.parts)]
        self.outputs = 0
        """Columns of the output of the policy network."""
        self.action_size = 0
        """Columns of actions."""
        self.n_stds = 0
        """Columns of standard deviations that are not outputs; 0 if there are none."""
        self.shared: list[bool] = []
        """For each of the parameters, whether all states share one row."""
        for part in self.parts:
            self.outputs += part.outputs
            self.action_size += part.action_size
            self.n_stds += part.n_stds
            self.shared += part.shared
        self.takes_integers = hybrid is None and self.parts[0].kind == "CATEGORICAL"
        """Whether actions are integers."""
        self.has_matrices = self.parts[0].kind == "STATE_DEPENDENT"
        """Whether this is gSDE, whose noise and standard deviations come from matrices."""
        self.fields = self.parts[0].fields if hybrid is None else self._fields_of_product(hybrid)
        """The fields of ``Networks`` that describe the distribution."""

    def _fields_of_product(self, distribution: HybridDistribution) -> dict[str, library.FieldValue]:
        for part, given in zip(self.parts, distribution.parts, strict=True):
            if part.kind not in FACTORS:
                raise ObstacleError(f"a part of the actions is drawn from a {type(given).__name__}")
        weighted = zip(self.parts, distribution.entropy_weights, distribution.conditions, strict=True)
        factors = [
            library.Factor(entropy_weight=weight, **part.fields, **self._fields_of_condition(condition))
            for part, weight, condition in weighted
        ]
        constant = library.CONSTANTS["Distributions"]["HYBRID"]
        return {"distribution": constant, "factors": library.as_array(factors), "n_factors": len(factors)}

    def _fields_of_condition(self, condition: Condition | None) -> dict[str, library.FieldValue]:
        if condition is None:
            return {}
        outcomes = np.zeros(self.parts[condition.choice].outputs, np.uint8)
        outcomes[list(condition.outcomes)] = 1
        return {"choice": condition.choice, "outcomes": outcomes}

    def draw_noise(self, n_steps: int, n_envs: int, dtype: th.dtype) -> np.ndarray:
        """Draw the random numbers of a rollout, except for gSDE, from PyTorch's generator.

        :return: standard normal numbers, shape ``(n_steps, n_envs, action_size)``, or else standard Gumbel or uniform
            numbers, shape ``(n_steps, n_envs, outputs)``
        """
        return np.concatenate([part.draw_noise(n_steps, n_envs, dtype) for part in self.parts], axis=2)

    def parameters(self, outputs: Rows, std: Rows | None) -> Parameters:
        """Return the parameters of distributions as :mod:`sb3_ppo_variants.kl` defines them.

        :param outputs: the outputs of the policy network after masking, shape ``(n, outputs)``
        :param std: the standard deviations that are not outputs, shape ``(n, n_stds)``, if there are any
        """
        columns = th.split(th.as_tensor(outputs, device="cpu"), [part.outputs for part in self.parts], dim=1)
        stds: Sequence[th.Tensor | None] = [None] * len(self.parts)
        if std is not None:
            stds = th.split(th.as_tensor(std, device="cpu"), [part.n_stds for part in self.parts], dim=1)
        each = zip(self.parts, columns, stds, strict=True)
        return tuple(tensor for part, output, of_part in each for tensor in part.parameters(output, of_part))

    def has(self, actions: np.ndarray) -> bool:
        """Whether these are among its actions, shape ``(n, action_size)``."""
        first = 0
        for part in self.parts:
            columns = actions[:, first : first + part.action_size]
            if part.kind == "CATEGORICAL" and not ((columns >= 0) & (columns < part.sizes)).all():
                return False
            first += part.action_size
        return True


class Features:
    """Computes the features of SB3's ``FlattenExtractor``, or of a ``CombinedExtractor`` without images.

    If actor and critic see different observations, the features of the actor come first, and then those of the critic.

    :param policy: the policy
    :raises ObstacleError: if its features come from something else
    """

    def __init__(self, policy: ActorCriticPolicy):
        self._space, self._normalize_images = policy.observation_space, policy.normalize_images
        keys: list[list[str] | None] = []
        extractor: Any
        # A policy whose actor and critic share their features uses the first of them to act.
        for extractor in (policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor):
            is_combined = type(extractor) is CombinedExtractor
            for part in extractor.extractors.values() if is_combined else [extractor]:
                flatten = part.flatten if type(part) is FlattenExtractor else part
                if type(flatten) is not nn.Flatten:
                    raise ObstacleError(f"features come from a {type(flatten).__name__}")
            keys.append([*extractor.extractors] if is_combined else None)
        acting, self._keys, critic = keys
        self.first_of_critic = 0
        """The first feature of the critic; 0 if actor and critic have the same features."""
        if not acting == self._keys == critic:
            if acting != self._keys or self._keys is None or critic is None or policy.share_features_extractor:
                raise ObstacleError("actor and critic have different features")
            self._keys, self.first_of_critic = [*self._keys, *critic], policy.pi_features_extractor.features_dim
        self.size = self.first_of_critic + policy.vf_features_extractor.features_dim
        """The number of features."""
        if any([is_image_space(part) for _, part in parts_of(self._space)]):
            raise ObstacleError("observations are images")

    def compute(self, observations: Observations, dtype: np.dtype) -> np.ndarray:
        """Compute contiguous features of shape ``(batch, size)``.

        As in SB3, discrete values become one-hot vectors, and others are rounded to single precision.

        :raises ValueError: if observations have another shape than those of the policy
        """
        if self._keys is None:
            numbers = self._flatten(observations, self._space)
        else:
            assert isinstance(self._space, spaces.Dict)
            parts = [self._flatten(observations[key], self._space[key]) for key in self._keys]
            numbers = np.concatenate(parts, axis=1)
        features = np.ascontiguousarray(numbers, dtype)
        features = features if features.flags.aligned else features.copy()
        return library.fitting(features, "features", dtype, len(features), self.size)

    def _flatten(self, observations: np.ndarray, space: AnySpace) -> np.ndarray:
        if observations.dtype.kind == "f" and isinstance(space, spaces.Box):
            return observations.reshape(len(observations), -1).astype(np.float32, copy=False)
        tensor = preprocess_obs(th.as_tensor(observations, device="cpu"), space, self._normalize_images)
        assert isinstance(tensor, th.Tensor)
        return tensor.flatten(1).numpy()


class Architecture:
    """The features, layers, activation and distribution of a policy.

    :param policy: the policy
    :raises ObstacleError: if the library does not compute such networks, or such distributions
    """

    def __init__(self, policy: ActorCriticPolicy):
        self.features = Features(policy)
        self.distribution = NativeDistribution(policy.action_dist)
        extractor = policy.mlp_extractor
        if type(extractor) is not MlpExtractor:
            raise ObstacleError(f"hidden layers are in a {type(extractor).__name__}")
        actor, activations = _find_layers("policy_net", extractor.policy_net, "action_net", policy.action_net)
        critic, others = _find_layers("value_net", extractor.value_net, "value_net", policy.value_net)
        self.actor, self.critic = actor, critic
        """The names of their layers."""
        activations |= others
        if len(activations) > 1 or not activations <= ACTIVATIONS.keys():
            raise ObstacleError(f"the activation is {', '.join(sorted([each.__name__ for each in activations]))}")
        (activation,) = activations or {nn.Tanh}  # Without hidden layers it is not used.
        self._fields = self.distribution.fields | {
            "activation": library.CONSTANTS["Activations"][ACTIVATIONS[activation]],
            "inputs": self.features.size,
            "of_critic": self.features.first_of_critic,
        }
        if self.distribution.has_matrices:
            self._fields |= _fields_of_gsde(policy.action_dist, self.distribution.outputs)

    def structure(self, arrays: Arrays, gradients: Arrays = NO_ARRAYS) -> library.Networks:
        """Fill the structure of networks with these parameters, and with arrays for their gradients, by name.

        :raises ObstacleError: if the parameters are not those of these networks, or have other shapes
        """
        names = {f"{layer}.{kind}" for layer in (*self.actor, *self.critic) for kind in ("weight", "bias")}
        if not names <= arrays.keys():
            raise ObstacleError("layers share parameters")
        if arrays.keys() - names - {"log_std"}:
            raise ObstacleError("the policy has parameters outside its layers")
        size, first_of_critic = self.features.size, self.features.first_of_critic
        actor = _layers(self.actor, first_of_critic or size, arrays, gradients)
        critic = _layers(self.critic, size - first_of_critic, arrays, gradients)
        if critic[-1].outputs != 1:
            raise ObstacleError(f"the value network has {critic[-1].outputs} outputs")
        outputs, n_stds = self.distribution.outputs, self.distribution.n_stds
        if actor[-1].outputs != outputs:
            raise ObstacleError(f"the policy network has {actor[-1].outputs} outputs instead of {outputs}")
        stds: dict[str, library.FieldValue] = {}
        if n_stds:
            log_std, columns = arrays.get("log_std"), self._fields.get("log_std_columns")
            if log_std is None:
                raise ObstacleError("log_std is not a parameter")
            if log_std.shape != ((actor[-1].inputs, columns) if columns else (n_stds,)):
                raise ObstacleError(f"log_std has the shape {log_std.shape}")
            stds = {"log_std": log_std, "d_log_std": gradients.get("log_std")}
        return library.Networks(actor, critic, len(actor), len(critic), **self._fields, **stds)


def _fields_of_gsde(distribution: Any, outputs: int) -> dict[str, library.FieldValue]:
    """Return SB3's options of gSDE."""
    if distribution.learn_features:
        raise ObstacleError("gSDE learns features")
    squash_epsilon = -1.0  # Actions are not squashed.
    if distribution.bijector is not None:
        if type(distribution.bijector) is not TanhBijector:
            raise ObstacleError(f"actions are squashed by a {type(distribution.bijector).__name__}")
        squash_epsilon = distribution.bijector.epsilon
    return {
        "log_std_columns": outputs if distribution.full_std else 1,
        "use_expln": int(distribution.use_expln),  # It may be NumPy's.
        "epsilon": distribution.epsilon,
        "squash_epsilon": squash_epsilon,
    }


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


def _layers(names: Iterable[str], size: int, arrays: Arrays, gradients: Arrays) -> "Array[library.Layer]":
    """Return the layers with these names, the first of which takes inputs of this size."""
    layers = []
    for name in names:
        weight, bias = arrays[f"{name}.weight"], arrays[f"{name}.bias"]
        # The library does not check that each layer takes what the one before it returns.
        if weight.shape[1:] != (size,) or weight.shape[:1] != bias.shape:
            raise ObstacleError(f"a layer has weights of shape {weight.shape} for {size} inputs")
        d_weight, d_bias = gradients.get(f"{name}.weight"), gradients.get(f"{name}.bias")
        layers.append(library.Layer(weight, bias, d_weight, d_bias, size, len(bias)))
        size = len(bias)
    return library.as_array(layers)


def arrays_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, np.ndarray]:
    """View parameters as arrays, by name."""
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


def compute_once(networks: library.Networks, dtype: np.dtype, **fields: library.FieldValue) -> None:
    """Call the library once with these fields of :class:`~.library.Acting`; the others are null."""
    library.library_in_use().with_memory(f"ppo_act_{dtype}", networks, library.Acting(**fields))()
