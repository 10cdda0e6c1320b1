"""SB3's policies in the form that the library takes: features, networks, and the distribution of actions."""

from collections.abc import Mapping
from operator import attrgetter
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
from sb3_ppo_variants.engines.recognised import require
from sb3_ppo_variants.hybrid import Condition, HybridDistribution
from sb3_ppo_variants.kl import Parameters, divergences_of
from sb3_ppo_variants.layout import AnySpace
from sb3_ppo_variants.policies.masked import is_masked

Arrays: TypeAlias = Mapping[str, np.ndarray]
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
        name = type(distribution).__name__
        self.kind = kind = "CATEGORICAL" if is_masked(distribution) else DISTRIBUTIONS.get(type(distribution), "")
        require(kind != "", f"actions are drawn from a {name}")
        require(divergences_of(distribution).built_in, f"a KL was registered for {name}")
        # SB3's and sb3-contrib's distributions have either a size or sizes, and Bernoulli's calls its size sizes.
        sizes = getattr(distribution, "action_dims" if hasattr(distribution, "action_dims") else "action_dim")
        self.sizes = np.ravel(np.array(sizes, np.int64))
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
        n_parameters = len(self.sizes) if kind == "CATEGORICAL" else 1 if kind == "BERNOULLI" else 2
        self.shared = [False] * (n_parameters - 1) + [kind in WITH_LOG_STD]

    def draw_noise(self, n_steps: int, n_envs: int, dtype: th.dtype) -> th.Tensor:
        """Draw the random numbers of a rollout; see :class:`NativeDistribution`."""
        if self.kind in OF_NORMAL_NOISE:
            return th.randn((n_steps, n_envs, self.action_size), dtype=dtype, device="cpu")
        shape = (n_steps, n_envs, self.outputs)
        if self.kind == "CATEGORICAL":
            return -th.empty(shape, dtype=dtype, device="cpu").exponential_().log_()
        return th.rand(shape, dtype=dtype, device="cpu")

    def parameters(self, outputs: th.Tensor, std: th.Tensor) -> Parameters:
        """Return the parameters of distributions; see :class:`NativeDistribution`."""
        if self.n_stds:
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
        self.parts = [*map(ActionPart, getattr(distribution, "parts", [distribution]))]
        self.outputs = self.action_size = self.n_stds = 0
        """Columns of the output of the policy network, of actions, and of standard deviations that are not outputs."""
        self.shared: list[bool] = []
        """For each of the parameters, whether all states share one row."""
        for part in self.parts:
            self.outputs += part.outputs
            self.action_size += part.action_size
            self.n_stds += part.n_stds
            self.shared += part.shared
        first, is_product = self.parts[0], isinstance(distribution, HybridDistribution)
        self.takes_integers = not is_product and first.kind == "CATEGORICAL"
        """Whether actions are integers."""
        self.has_matrices = first.kind == "STATE_DEPENDENT"
        """Whether this is gSDE, whose noise and standard deviations come from matrices."""
        self.fields = self._fields_of_product(distribution) if is_product else first.fields
        """The fields of ``Networks`` that describe the distribution."""

    def _fields_of_product(self, distribution: Any) -> dict[str, library.FieldValue]:
        require(type(distribution) is HybridDistribution, f"actions are drawn from a {type(distribution).__name__}")
        factors = []
        given = zip(distribution.parts, distribution.entropy_weights, distribution.conditions, strict=True)
        for part, (of_part, weight, condition) in zip(self.parts, given, strict=True):
            require(part.kind in FACTORS, f"a part of the actions is drawn from a {type(of_part).__name__}")
            fields = part.fields | ({} if condition is None else self._fields_of_condition(condition))
            factors.append(library.Factor(entropy_weight=weight, **fields))
        constant = library.CONSTANTS["Distributions"]["HYBRID"]
        return {"distribution": constant, "factors": library.as_array(factors), "n_factors": len(factors)}

    def _fields_of_condition(self, condition: Condition) -> dict[str, library.FieldValue]:
        outcomes = np.zeros(self.parts[condition.choice].outputs, np.uint8)
        outcomes[list(condition.outcomes)] = 1
        return {"choice": condition.choice, "outcomes": outcomes}

    def draw_noise(self, n_steps: int, n_envs: int, dtype: th.dtype) -> np.ndarray:
        """Draw the random numbers of a rollout, except for gSDE, from PyTorch's generator.

        :return: standard normal numbers, shape ``(n_steps, n_envs, action_size)``, or else standard Gumbel or uniform
            numbers, shape ``(n_steps, n_envs, outputs)``
        """
        return th.cat([part.draw_noise(n_steps, n_envs, dtype) for part in self.parts], dim=2).numpy()

    def parameters(self, outputs: th.Tensor, std: th.Tensor | None) -> Parameters:
        """Return the parameters of distributions as :mod:`sb3_ppo_variants.kl` defines them.

        :param outputs: the outputs of the policy network after masking, shape ``(n, outputs)``
        :param std: the standard deviations that are not outputs, shape ``(n, n_stds)``, if there are any
        """
        columns = th.split(outputs, [part.outputs for part in self.parts], dim=1)
        stds = th.split(outputs[:, :0] if std is None else std, [part.n_stds for part in self.parts], dim=1)
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
        space, self._normalize_images = policy.observation_space, policy.normalize_images
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        actor = critic = _keys_of(policy.features_extractor)
        if not policy.share_features_extractor:
            actor, critic = map(_keys_of, (policy.pi_features_extractor, policy.vf_features_extractor))
        self.first_of_critic = 0 if actor == critic else policy.pi_features_extractor.features_dim
        """The first feature of the critic; 0 if actor and critic have the same features."""
        self.size = self.first_of_critic + policy.vf_features_extractor.features_dim
        """The number of features."""
        require(not any(map(is_image_space, parts.values())), "observations are images")
        self._keys, self._spaces = (actor if actor == critic else [*actor, *critic]), parts

    @np.errstate(all="ignore")
    def compute(self, observations: Observations, dtype: np.dtype) -> np.ndarray:
        """Compute contiguous features of shape ``(batch, size)``.

        As in SB3, discrete values become one-hot vectors, and others are rounded to single precision.

        :raises ValueError: if observations have another shape than those of the policy
        """
        parts = []
        for key in self._keys:
            of_key = observations[key] if isinstance(observations, dict) else observations
            parts.append(self._flatten(of_key, self._spaces[key]))
        features = np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), dtype)
        features = features if features.flags.aligned else features.copy()
        return library.fitting(features, "features", dtype, len(features), self.size)

    def _flatten(self, observations: np.ndarray, space: AnySpace) -> np.ndarray:
        if observations.dtype.kind == "f" and isinstance(space, spaces.Box):
            return observations.reshape(len(observations), -1).astype(np.float32, copy=False)
        tensor = preprocess_obs(th.as_tensor(observations, device="cpu"), space, self._normalize_images)
        assert isinstance(tensor, th.Tensor)
        return tensor.flatten(1).numpy()


def _keys_of(extractor: Any) -> list[str]:
    """Find the keys of the observations that features consist of, or ``""`` for all that is observed."""
    parts = extractor.extractors if type(extractor) is CombinedExtractor else {"": extractor}
    for part in parts.values():
        flatten = part.flatten if type(part) is FlattenExtractor else part
        require(type(flatten) is nn.Flatten, f"features come from a {type(flatten).__name__}")
    return [*parts]


class Architecture:
    """The features, layers, activation and distribution of a policy, in its parameters' or other arrays.

    :param policy: the policy
    :param arrays: its parameters by name
    :param gradients: arrays for their gradients
    :raises ObstacleError: if the library does not compute such networks, or such distributions
    """

    def __init__(self, policy: ActorCriticPolicy, arrays: Arrays, gradients: Arrays = NO_ARRAYS):
        self.features, self.distribution = Features(policy), NativeDistribution(policy.action_dist)
        self._policy, self._arrays, self._gradients = policy, arrays, gradients
        self._activations: set[type[nn.Module]] = set()
        size, first_of_critic = self.features.size, self.features.first_of_critic
        extractor = policy.mlp_extractor
        require(type(extractor) is MlpExtractor, f"hidden layers are in a {type(extractor).__name__}")
        self.actor = self._layers("policy_net", "action_net", first_of_critic or size)
        self.critic = self._layers("value_net", "value_net", size - first_of_critic)
        """Their layers by name."""
        n_arrays = 2 * len(self.actor) + 2 * len(self.critic)
        require(len(arrays.keys() - {"log_std"}) == n_arrays, "the policy has parameters outside its layers")
        actor, critic = [*self.actor.values()], [*self.critic.values()]
        outputs, wanted = actor[-1].outputs, self.distribution.outputs
        require(outputs == wanted, f"the policy network has {outputs} outputs instead of {wanted}")
        require(critic[-1].outputs == 1, f"the value network has {critic[-1].outputs} outputs")
        activations = self._activations or {nn.Tanh}  # Without hidden layers it is not used.
        names = ", ".join(sorted(map(attrgetter("__name__"), activations)))
        require(len(activations) == 1 and activations <= ACTIVATIONS.keys(), f"the activation is {names}")
        self.structure = library.Networks(
            actor=library.as_array(actor), critic=library.as_array(critic), actor_layers=len(actor),
            critic_layers=len(critic), inputs=size, of_critic=first_of_critic,
            activation=library.CONSTANTS["Activations"][ACTIVATIONS[next(iter(activations))]],
            **self.distribution.fields, **self._fields_of_std(policy.action_dist, actor[-1].inputs),
        )  # fmt: skip
        """The networks in the form that the library takes."""

    def _layers(self, trunk: str, head: str, size: int) -> dict[str, library.Layer]:
        """Return the layers of a network by name, the first of which takes inputs of this size.

        :param trunk: the name of its hidden layers
        :param head: the name of its last layer
        """
        hidden: Any = getattr(self._policy.mlp_extractor, trunk)
        require(type(hidden) is nn.Sequential, f"hidden layers are in a {type(hidden).__name__}")
        layers = {}
        for i, module in enumerate([*hidden, getattr(self._policy, head)]):
            if i % 2 == 1:
                self._activations.add(type(module))
                continue
            is_known = type(module) is nn.Linear and module.bias is not None
            require(is_known, f"the networks have a {type(module).__name__} where a Linear with a bias is expected")
            name = f"mlp_extractor.{trunk}.{i}" if i < len(hidden) else head
            of_weight, of_bias = f"{name}.weight", f"{name}.bias"
            require(of_weight in self._arrays, "layers share parameters")
            weight, bias = self._arrays[of_weight], self._arrays[of_bias]
            # The library does not check that each layer takes what the one before it returns.
            fits = weight.shape[1:] == (size,) and weight.shape[:1] == bias.shape
            require(fits, f"a layer has weights of shape {weight.shape} for {size} inputs")
            layers[name] = library.Layer(
                weight=weight, bias=bias, d_weight=self._gradients.get(of_weight), d_bias=self._gradients.get(of_bias),
                inputs=size, outputs=len(bias),
            )  # fmt: skip
            size = len(bias)
        return layers

    def _fields_of_std(self, distribution: Any, latent: int) -> dict[str, library.FieldValue]:
        """Return the standard deviations that are not outputs, and SB3's options of gSDE.

        :param latent: the number of outputs of the actor's last hidden layer
        """
        shape: tuple[int, ...] = (self.distribution.n_stds,)
        if shape == (0,):
            return {}
        require("log_std" in self._arrays, "log_std is not a parameter")
        log_std = self._arrays["log_std"]
        fields: dict[str, library.FieldValue] = {"log_std": log_std, "d_log_std": self._gradients.get("log_std")}
        if self.distribution.has_matrices:
            require(not distribution.learn_features, "gSDE learns features")
            bijector = distribution.bijector
            is_known = bijector is None or type(bijector) is TanhBijector
            require(is_known, f"actions are squashed by a {type(bijector).__name__}")
            shape = (latent, self.distribution.outputs if distribution.full_std else 1)
            fields |= {
                "log_std_columns": shape[1],
                "use_expln": int(distribution.use_expln),  # It may be NumPy's.
                "epsilon": distribution.epsilon,
                "squash_epsilon": -1.0 if bijector is None else bijector.epsilon,  # Negative: not squashed.
            }
        require(log_std.shape == shape, f"log_std has the shape {log_std.shape}")
        return fields


def arrays_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, np.ndarray]:
    """View parameters as arrays, by name."""
    return dict(zip(parameters, map(th.Tensor.numpy, map(th.Tensor.detach, parameters.values())), strict=True))


def compute_once(networks: library.Networks, dtype: np.dtype, **fields: library.FieldValue) -> None:
    """Call the library once with these fields of :class:`~.library.Acting`; the others are null."""
    library.with_memory(f"ppo_act_{dtype}", networks, library.Acting(**fields))()
