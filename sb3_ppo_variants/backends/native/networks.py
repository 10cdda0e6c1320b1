"""The networks of SB3's ``ActorCriticPolicy`` in the form that the library takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    DiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import CombinedExtractor
from torch import nn

from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.library import Library, library
from sb3_ppo_variants.backends.native.structures import fitting
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.rollouts.loop import Observations


class Features:
    """Computes the features of SB3's ``FlattenExtractor``, or of a ``CombinedExtractor`` without images.

    :param policy: the policy
    :param dtype: the type of the features
    """

    def __init__(self, policy: ActorCriticPolicy, dtype: np.dtype):
        self._space = policy.observation_space
        self._normalize_images = policy.normalize_images
        self._dtype = dtype
        extractor = policy.features_extractor
        self._keys = list(extractor.extractors) if isinstance(extractor, CombinedExtractor) else None

    def __call__(self, observations: Observations) -> np.ndarray:
        """Return features of shape ``(batch, inputs)``.

        As in SB3, discrete values become one-hot vectors, and others are rounded to single precision.
        """
        if self._keys is None:
            return self._flat(observations, self._space)
        assert isinstance(self._space, spaces.Dict)
        return np.concatenate([self._flat(observations[key], self._space[key]) for key in self._keys], axis=1)

    def _flat(self, observations: np.ndarray, space: spaces.Space) -> np.ndarray:
        if observations.dtype.kind == "f":
            flat = observations if observations.ndim == 2 else observations.reshape(len(observations), -1)
            return flat.astype(np.float32, copy=False).astype(self._dtype, copy=False)
        tensor = preprocess_obs(th.as_tensor(observations), space, self._normalize_images)
        assert isinstance(tensor, th.Tensor)
        return tensor.flatten(1).numpy().astype(self._dtype, copy=False)


def as_batch(observation: Any) -> Observations:
    """Return one observation as a batch of one."""
    if isinstance(observation, dict):
        return {key: np.asarray(value)[None] for key, value in observation.items()}
    return np.asarray(observation)[None]


Arrays = Mapping[str, np.ndarray]

# The numbers in interface.hpp.
ACTIVATIONS: Mapping[type[nn.Module], int] = {nn.Tanh: 0, nn.ReLU: 1}
GAUSSIAN, CATEGORICAL, BERNOULLI, STATE_DEPENDENT = range(4)
# The fields of the structure, with what stands for nothing.
ACTING = {name: 0 if kind is structures.COUNT else None for name, kind, *_ in structures.Acting._fields_}
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
        squash = NOT_SQUASHED if distribution.bijector is None else distribution.bijector.epsilon
        columns = outputs if distribution.full_std else 1
        return cls(columns, distribution.use_expln, distribution.learn_features, distribution.epsilon, squash)


@dataclass(frozen=True)
class Architecture:
    """The names of a policy's layers, its activation and its distribution.

    :param parts: the number of categories of each part of a categorical action; for others, one entry with the number
        of dimensions
    """

    actor: list[str]
    critic: list[str]
    activation: int
    distribution: int
    parts: list[int]
    state_dependence: StateDependence

    @classmethod
    def of(cls, policy: ActorCriticPolicy) -> "Architecture":
        """Return the architecture of a policy that has no :func:`~.obstacles.obstacle`."""
        outputs = len(policy.get_parameter("action_net.bias"))
        distribution: Any = policy.action_dist
        kind, parts, dependence = CATEGORICAL, [outputs], StateDependence()
        if isinstance(distribution, DiagGaussianDistribution):
            kind = GAUSSIAN
        elif isinstance(distribution, StateDependentNoiseDistribution):
            kind, dependence = STATE_DEPENDENT, StateDependence.of(distribution, outputs)
        elif isinstance(distribution, BernoulliDistribution):
            kind = BERNOULLI
        else:
            # Several parts have the multi-categorical distributions of SB3 and sb3-contrib, and sb3-contrib's masked
            # Bernoulli distribution.
            parts = [int(size) for size in getattr(distribution, "action_dims", parts)]
        extractor: Any = policy.mlp_extractor
        kinds = [
            ACTIVATIONS[type(each)]
            for each in (*extractor.policy_net, *extractor.value_net)
            if type(each) in ACTIVATIONS
        ]
        return cls(
            actor=[*_hidden_layers(policy, "policy_net"), "action_net"],
            critic=[*_hidden_layers(policy, "value_net"), "value_net"],
            activation=kinds[0] if kinds else 0,
            distribution=kind,
            parts=parts,
            state_dependence=dependence,
        )

    @property
    def outputs(self) -> int:
        """The number of outputs of the policy network."""
        return sum(self.parts)

    @property
    def takes_integers(self) -> bool:
        """Whether actions are integers."""
        return self.distribution == CATEGORICAL

    @property
    def action_size(self) -> int:
        """The length of an action."""
        return len(self.parts) if self.takes_integers else self.outputs

    @property
    def has_std(self) -> bool:
        """Whether the distributions have standard deviations, and the policy a parameter for them."""
        return self.distribution in (GAUSSIAN, STATE_DEPENDENT)

    @property
    def old_size(self) -> int:
        """How many numbers describe a distribution."""
        return (1 + self.has_std) * self.outputs

    def draw_noise(self, n_steps: int, n_envs: int, dtype: th.dtype) -> np.ndarray:
        """Draw the random numbers of a rollout, except for gSDE, from PyTorch's generator.

        :return: standard normal, standard Gumbel or uniform numbers, shape ``(n_steps, n_envs, outputs)``
        """
        shape = (n_steps, n_envs, self.outputs)
        if self.distribution == GAUSSIAN:
            return th.randn(shape, dtype=dtype).numpy()
        if self.distribution == CATEGORICAL:
            return -th.empty(shape, dtype=dtype).exponential_().log_().numpy()
        return th.rand(shape, dtype=dtype).numpy()

    def parameters(self, outputs: np.ndarray, std: np.ndarray | None) -> Parameters:
        """Return the parameters of distributions as :mod:`sb3_ppo_variants.kl` defines them.

        :param outputs: the outputs of the policy network after masking, shape ``(n, outputs)``
        :param std: the standard deviations, same shape, if there are any
        """
        if std is not None:
            return th.from_numpy(outputs), th.from_numpy(std)
        if self.distribution == BERNOULLI:
            return (th.from_numpy(outputs),)
        parts = zip(self.parts, accumulate(self.parts), strict=True)
        return tuple(th.from_numpy(outputs[:, end - size : end]).log_softmax(dim=1) for size, end in parts)

    def structure(self, arrays: Arrays, gradients: Arrays | None = None) -> structures.Networks:
        """Return the structure of networks with these parameters, and with arrays for their gradients, by name.

        :raises ValueError: if a layer does not take what the one before it returns, the outputs are not those that the
            distribution takes, or an array has another type or layout than the library takes
        """
        dtype, inputs = arrays["action_net.bias"].dtype, self.inputs(arrays)
        actor = _layers(self.actor, dtype, inputs, self.outputs, arrays, gradients)
        critic = _layers(self.critic, dtype, inputs, 1, arrays, gradients)
        log_std, d_log_std = None, None
        if self.has_std:
            latent = arrays["action_net.weight"].shape[-1]
            columns = self.state_dependence.log_std_columns
            shape = (latent, columns) if self.distribution == STATE_DEPENDENT else (self.outputs,)
            log_std = fitting(arrays["log_std"], "log_std", dtype, *shape)
            d_log_std = None if gradients is None else fitting(gradients["log_std"], "log_std", dtype, *shape)
        return structures.Networks(
            actor,
            critic,
            len(actor),
            len(critic),
            self.activation,
            self.distribution,
            np.array(self.parts, np.int64),
            len(self.parts),
            log_std,
            d_log_std,
            *self.state_dependence,
        )

    def inputs(self, arrays: Arrays) -> int:
        """Return the number of features that networks with these parameters take."""
        return int(arrays[f"{self.actor[0]}.weight"].shape[-1])


def _hidden_layers(policy: ActorCriticPolicy, network: str) -> list[str]:
    modules: Any = policy.get_submodule(f"mlp_extractor.{network}")
    return [f"mlp_extractor.{network}.{i}" for i, module in enumerate(modules) if isinstance(module, nn.Linear)]


def _layers(
    names: Sequence[str], dtype: np.dtype, inputs: int, outputs: int, arrays: Arrays, gradients: Arrays | None
) -> Any:
    """Return the layers with these names, from the inputs of the first to the outputs of the last."""
    layers, widths = [], [inputs, *(len(arrays[f"{name}.bias"]) for name in names[:-1]), outputs]
    for name, (n_inputs, n_outputs) in zip(names, pairwise(widths), strict=True):
        shapes = {f"{name}.weight": (n_outputs, n_inputs), f"{name}.bias": (n_outputs,)}
        weight, bias = (fitting(arrays[key], key, dtype, *shape) for key, shape in shapes.items())
        d_weight, d_bias = (
            None if gradients is None else fitting(gradients[key], key, dtype, *shape) for key, shape in shapes.items()
        )
        layers.append(structures.Layer(weight, bias, d_weight, d_bias, n_inputs, n_outputs))
    return structures.as_array(layers)


class Evaluated(NamedTuple):
    """What networks return for some states."""

    outputs: np.ndarray
    """The outputs of the policy network after masking, shape ``(n, outputs)``."""
    std: np.ndarray | None
    """The standard deviations that depend on the state, same shape; ``None`` if they do not."""


def evaluate(
    architecture: Architecture, networks: structures.Networks, features: np.ndarray, masks: np.ndarray | None
) -> Evaluated:
    """Compute the distributions in any number of states.

    :param features: contiguous, of the type of the networks, shape ``(n, inputs)``
    :param masks: True for allowed actions, shape ``(n, outputs)``; ``None`` allows all actions
    """
    dtype, n = features.dtype, len(features)
    outputs = np.empty((n, architecture.outputs), dtype)
    std = np.empty_like(outputs) if architecture.distribution == STATE_DEPENDENT else None
    allowed = None if masks is None else fitting(np.ascontiguousarray(masks), "masks", bool, *outputs.shape)
    run_acting(networks, dtype, features=features, masks=allowed, outputs=outputs, deviations=std, rows=n)
    return Evaluated(outputs, std)


def values_of(networks: structures.Networks, features: np.ndarray) -> np.ndarray:
    """Compute the values of any number of states, shape ``(n, 1)``; see :func:`evaluate`."""
    values = np.empty((len(features), 1), features.dtype)
    run_acting(networks, features.dtype, features=features, values=values, rows=len(features))
    return values


def run_acting(networks: structures.Networks, dtype: np.dtype, **fields: Any) -> None:
    """Call the library once with these fields of :class:`~.structures.Acting`; the others are null."""
    acting = structures.Acting(*(fields.get(name, null) for name, null in ACTING.items()))
    library_in_use().acting(dtype, networks, acting)()


def library_in_use() -> Library:
    """Return the library, whose presence :func:`~.obstacles.obstacle` has checked."""
    found = library()
    assert found is not None
    return found
