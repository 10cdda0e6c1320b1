"""The networks of a policy in the form that the library takes."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from sb3_ppo_variants.backends.arrays.discrete import Bernoulli, Categorical, MultiCategorical
from sb3_ppo_variants.backends.arrays.distribution import Distribution, check_finite
from sb3_ppo_variants.backends.arrays.gaussian import DiagGaussian
from sb3_ppo_variants.backends.arrays.mlp import RELU, TANH
from sb3_ppo_variants.backends.arrays.networks import ActorCritic, Architecture
from sb3_ppo_variants.backends.arrays.state_dependent import StateDependent
from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.library import library

Arrays = Mapping[str, np.ndarray]
Bounds: TypeAlias = tuple[np.ndarray, np.ndarray] | None

# The positions and values are the numbers in interface.hpp.
ACTIVATIONS = (TANH, RELU)
DISTRIBUTIONS: Mapping[type[Distribution], int] = {
    DiagGaussian: 0,
    Categorical: 1,
    MultiCategorical: 1,
    Bernoulli: 2,
    StateDependent: 3,
}


def as_structure(architecture: Architecture, arrays: Arrays, gradients: Arrays | None = None) -> structures.Networks:
    """Return the structure of networks with these parameters, and with arrays for their gradients, by name."""
    actor = _layers([*architecture.actor, "action_net"], arrays, gradients)
    critic = _layers([*architecture.critic, "value_net"], arrays, gradients)
    (log_std,) = architecture.log_std_of(arrays) or (None,)
    (d_log_std,) = (gradients and architecture.log_std_of(gradients)) or (None,)
    return structures.Networks(
        actor,
        critic,
        len(actor),
        len(critic),
        ACTIVATIONS.index(architecture.activation),
        DISTRIBUTIONS[architecture.kind],
        np.array(architecture.sizes, np.int64),
        len(architecture.sizes),
        log_std,
        d_log_std,
    )


def _layers(names: Sequence[str], arrays: Arrays, gradients: Arrays | None) -> Any:
    layers = []
    for name in names:
        weight, bias = f"{name}.weight", f"{name}.bias"
        d_weight, d_bias = (None, None) if gradients is None else (gradients[weight], gradients[bias])
        outputs, inputs = arrays[weight].shape
        layers.append(structures.Layer(arrays[weight], arrays[bias], d_weight, d_bias, inputs, outputs))
    return structures.as_array(layers)


class NativeActorCritic(ActorCritic):
    """The policy and value networks, evaluated by the library.

    :param architecture: architecture of the networks
    :param arrays: values of the parameters by their names in the policy
    """

    def __init__(self, architecture: Architecture, arrays: Arrays):
        super().__init__(architecture, arrays)
        self._structure = as_structure(architecture, arrays)
        self._dtype = arrays["action_net.bias"].dtype
        self._inputs = arrays[f"{[*architecture.actor, 'action_net'][0]}.weight"].shape[1]
        self._outputs = len(arrays["action_net.bias"])
        self._action_size = len(architecture.sizes) if architecture.kind.takes_integers else self._outputs

    def action_output(self, features: np.ndarray) -> np.ndarray:
        output = np.empty((len(features), self._outputs), self._dtype)
        self._evaluate(features, outputs=output)
        return output

    # One call evaluates any number of states.
    action_outputs = action_output

    def values(self, features: np.ndarray) -> np.ndarray:
        values = np.empty((len(features), 1), self._dtype)
        self._evaluate(features, values=values)
        return values

    def _evaluate(
        self, features: np.ndarray, outputs: np.ndarray | None = None, values: np.ndarray | None = None
    ) -> None:
        if features.shape[1:] != (self._inputs,):
            raise ValueError(f"the features have the shape {features.shape}; allowed: (n, {self._inputs})")
        features, rows = np.ascontiguousarray(features, self._dtype), len(features)
        results = (outputs, None, None, None, values)
        acting = structures.Acting(features, None, None, None, *results, rows, self._action_size, 0, 1)
        library_in_use().acting(self._dtype, self._structure, acting)()

    @property
    def structure(self) -> structures.Networks:
        """The networks in the form that the library takes."""
        return self._structure

    def steps(self, noise: np.ndarray, bounds: Bounds) -> "Steps":
        """Return the steps of a rollout with these networks; see :class:`Steps`."""
        return Steps(self._structure, self._inputs, self._action_size, noise, bounds)


class Steps:
    """The steps of a rollout. One call computes a step and writes it to arrays that hold all steps.

    :param networks: the networks
    :param inputs: number of features
    :param action_size: length of an action
    :param noise: the noise from which actions are drawn, shape ``(steps, states per step, outputs)``
    :param bounds: the bounds to which actions are clipped; ``None`` if they are not clipped
    """

    def __init__(self, networks: structures.Networks, inputs: int, action_size: int, noise: np.ndarray, bounds: Bounds):
        (n_steps, rows, outputs), dtype = noise.shape, noise.dtype
        self.features = np.zeros((rows, inputs), dtype)
        self.outputs, self.actions = (np.zeros((n_steps, rows, size), dtype) for size in (outputs, action_size))
        self.log_probs, self.values = np.zeros((n_steps, rows), dtype), np.zeros((n_steps, rows, 1), dtype)
        self.clipped = None if bounds is None else np.zeros_like(self.actions)
        low, high = (None, None) if bounds is None else map(np.ascontiguousarray, bounds)
        results = (self.outputs, self.actions, self.clipped, self.log_probs, self.values)
        self._structure = structures.Acting(self.features, noise, low, high, *results, rows, action_size, 0, 1)
        self._dtype = dtype
        self.use(networks)

    def use(self, networks: structures.Networks) -> None:
        """Take the next steps with other networks of the same sizes."""
        self._run = library_in_use().acting(self._dtype, networks, self._structure)

    def take(self, step: int, features: np.ndarray) -> None:
        """Compute a step and fill its rows.

        :param features: features of any numeric type, shape ``(states per step, inputs)``
        :raises NonFiniteError: if the policy network's output or an action is not finite
        """
        if features.shape != self.features.shape:
            raise ValueError(f"the features have the shape {features.shape}; allowed: {self.features.shape}")
        self.features[...] = features
        outputs = self.outputs[step]  # Raises IndexError if there is no such step.
        self._structure.step = step
        self._run()
        if not self._structure.is_finite:
            check_finite(outputs)
            check_finite(self.actions[step])


def library_in_use() -> Any:
    """Return the library, whose presence :func:`~.obstacles.obstacle` has checked."""
    found = library()
    assert found is not None
    return found
