"""The networks of a policy in the form that the library takes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sb3_ppo_variants.backends.arrays.discrete import Bernoulli, Categorical, MultiCategorical
from sb3_ppo_variants.backends.arrays.distribution import Distribution, check_finite
from sb3_ppo_variants.backends.arrays.gaussian import DiagGaussian
from sb3_ppo_variants.backends.arrays.mlp import RELU, TANH
from sb3_ppo_variants.backends.arrays.networks import ActorCritic, Architecture
from sb3_ppo_variants.backends.arrays.state_dependent import StateDependent
from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.library import library
from sb3_ppo_variants.backends.native.structures import fitting

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
    """Return the structure of networks with these parameters, and with arrays for their gradients, by name.

    :raises ValueError: if a layer does not take what the one before it returns, the outputs are not those that the
        distribution takes, or an array has another type or layout than the library takes
    """
    names = [[*architecture.actor, "action_net"], [*architecture.critic, "value_net"]]
    dtype, inputs = arrays["action_net.bias"].dtype, arrays[f"{names[0][0]}.weight"].shape[-1]
    outputs, latent = sum(architecture.sizes), arrays["action_net.weight"].shape[-1]
    actor = _layers(names[0], dtype, inputs, outputs, arrays, gradients)
    critic = _layers(names[1], dtype, inputs, 1, arrays, gradients)
    shape = (latent, outputs) if architecture.kind is StateDependent else (outputs,)
    log_stds = [
        fitting(array, "log_std", dtype, *shape)
        for each in (arrays, gradients or {})
        if each
        for array in architecture.log_std_of(each)
    ]
    log_std, d_log_std = (*log_stds, None, None)[:2]
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


class Sizes(NamedTuple):
    """What networks take and return: their type, their numbers of inputs and outputs, and the length of an action."""

    dtype: np.dtype
    inputs: int
    outputs: int
    action: int


class NativeActorCritic(ActorCritic):
    """The policy and value networks, evaluated by the library.

    :param architecture: architecture of the networks
    :param arrays: values of the parameters by their names in the policy
    """

    def __init__(self, architecture: Architecture, arrays: Arrays):
        super().__init__(architecture, arrays)
        self._structure = as_structure(architecture, arrays)
        self.sizes = Sizes(
            dtype=arrays["action_net.bias"].dtype,
            inputs=arrays[f"{[*architecture.actor, 'action_net'][0]}.weight"].shape[1],
            outputs=len(arrays["action_net.bias"]),
            action=len(architecture.sizes) if architecture.kind.takes_integers else len(arrays["action_net.bias"]),
        )

    def action_output(self, features: np.ndarray) -> np.ndarray:
        output = np.empty((len(features), self.sizes.outputs), self.sizes.dtype)
        self._evaluate(features, outputs=output)
        return output

    # One call evaluates any number of states.
    action_outputs = action_output

    def values(self, features: np.ndarray) -> np.ndarray:
        values = np.empty((len(features), 1), self.sizes.dtype)
        self._evaluate(features, values=values)
        return values

    def _evaluate(
        self, features: np.ndarray, outputs: np.ndarray | None = None, values: np.ndarray | None = None
    ) -> None:
        dtype, inputs, _, action_size = self.sizes
        if features.shape[1:] != (inputs,):
            raise ValueError(f"the features have the shape {features.shape}; allowed: (n, {inputs})")
        features, rows = np.ascontiguousarray(features, dtype), len(features)
        results = (outputs, None, None, None, values)
        acting = structures.Acting(features, None, None, None, *results, rows, action_size, 0, 1)
        library_in_use().acting(dtype, self._structure, acting)()

    @property
    def structure(self) -> structures.Networks:
        """The networks in the form that the library takes."""
        return self._structure

    def steps(self, noise: np.ndarray, bounds: Bounds) -> "Steps":
        """Return the steps of a rollout with these networks; see :class:`Steps`."""
        return Steps(self, noise, bounds)


class Steps:
    """The steps of a rollout. One call computes a step and writes it to arrays that hold all steps.

    :param networks: the networks
    :param noise: the noise from which actions are drawn, shape ``(steps, states per step, outputs)``
    :param bounds: the bounds to which actions are clipped; ``None`` if they are not clipped
    """

    def __init__(self, networks: NativeActorCritic, noise: np.ndarray, bounds: Bounds):
        self._sizes = networks.sizes
        dtype, inputs, outputs, action_size = networks.sizes
        n_steps, rows, _ = noise.shape
        fitting(noise, "noise", dtype, n_steps, rows, outputs)
        self.features = np.zeros((rows, inputs), dtype)
        self.outputs, self.actions = (np.zeros((n_steps, rows, size), dtype) for size in (outputs, action_size))
        self.log_probs, self.values = np.zeros((n_steps, rows), dtype), np.zeros((n_steps, rows, 1), dtype)
        self.clipped = None if bounds is None else np.zeros_like(self.actions)
        low, high = (
            (None, None)
            if bounds is None
            else (fitting(np.ravel(bound), "bound of actions", dtype, action_size) for bound in bounds)
        )
        results = (self.outputs, self.actions, self.clipped, self.log_probs, self.values)
        self._structure = structures.Acting(self.features, noise, low, high, *results, rows, action_size, 0, 1)
        self.use(networks)

    def use(self, networks: NativeActorCritic) -> None:
        """Take the next steps with other networks of the same sizes.

        :raises ValueError: if they have others
        """
        if networks.sizes != self._sizes:
            raise ValueError(f"the networks have {networks.sizes} in place of {self._sizes}")
        self._run = library_in_use().acting(self._sizes.dtype, networks.structure, self._structure)

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
