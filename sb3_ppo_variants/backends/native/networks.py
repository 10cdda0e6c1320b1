"""The networks of a policy as the library takes them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sb3_ppo_variants.backends.arrays.discrete import Bernoulli, Categorical, MultiCategorical
from sb3_ppo_variants.backends.arrays.distribution import Distribution, check_finite
from sb3_ppo_variants.backends.arrays.gaussian import DiagGaussian
from sb3_ppo_variants.backends.arrays.mlp import RELU, TANH
from sb3_ppo_variants.backends.arrays.networks import Acted, ActorCritic, Architecture
from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.library import library

Arrays = Mapping[str, np.ndarray]

# By the numbers that interface.hpp gives them.
ACTIVATIONS = (TANH, RELU)
DISTRIBUTIONS: Mapping[type[Distribution], int] = {DiagGaussian: 0, Categorical: 1, MultiCategorical: 1, Bernoulli: 2}


def as_structure(architecture: Architecture, arrays: Arrays, gradients: Arrays | None = None) -> structures.Networks:
    """The networks with these parameters, and arrays for their gradients, by name."""
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
    """The policy and the value network, evaluated by the library.

    :param architecture: what the networks are made of
    :param arrays: the parameters' values by their names in the policy
    """

    def __init__(self, architecture: Architecture, arrays: Arrays):
        super().__init__(architecture, arrays)
        self._structure = as_structure(architecture, arrays)
        self._dtype = arrays["action_net.bias"].dtype
        self._inputs = arrays[f"{[*architecture.actor, 'action_net'][0]}.weight"].shape[1]
        self._outputs = len(arrays["action_net.bias"])
        self._takes_integers = architecture.kind.takes_integers
        self._action_size = len(architecture.sizes) if self._takes_integers else self._outputs
        self._step = self._acting(0)

    def _acting(self, rows: int) -> "Step":
        return Step(self._structure, self._dtype, rows, self._inputs, self._outputs, self._action_size)

    def action_output(self, features: np.ndarray) -> np.ndarray:
        output = np.empty((len(features), self._outputs), self._dtype)
        self._evaluate(features, outputs=output)
        return output

    # In one call for however many states.
    action_outputs = action_output

    def values(self, features: np.ndarray) -> np.ndarray:
        values = np.empty((len(features), 1), self._dtype)
        self._evaluate(features, values=values)
        return values

    def _evaluate(
        self, features: np.ndarray, outputs: np.ndarray | None = None, values: np.ndarray | None = None
    ) -> None:
        self._check(features)
        features, rows = np.ascontiguousarray(features, self._dtype), len(features)
        acting = structures.Acting(features, None, outputs, None, None, values, rows, self._action_size, 1)
        library_in_use().acting(self._dtype, self._structure, acting)()

    def _check(self, features: np.ndarray) -> None:
        if features.shape[1:] != (self._inputs,):
            raise ValueError(f"the features have the shape {features.shape}; allowed: (n, {self._inputs})")

    def act(self, features: np.ndarray, noise: Any, masks: np.ndarray | None = None) -> Acted:
        assert masks is None, "the obstacles name masks"
        step = self._step
        if features.shape != step.features.shape:
            self._check(features)
            step = self._step = self._acting(len(features))
        step.features[...] = features
        # A Gaussian's noise comes with its exponents.
        step.noise[...] = noise[0] if isinstance(noise, tuple) else noise
        step.run()
        if not step.structure.is_finite:
            check_finite(step.output)
        actions = step.actions.astype(np.int64) if self._takes_integers else step.actions.copy()
        return Acted(step.output.copy(), actions, step.log_probs.copy(), step.values.copy())


class Step:
    """Arrays for what a step takes and what comes of it, which stay where they are from one step to the next."""

    def __init__(
        self, networks: structures.Networks, dtype: np.dtype, rows: int, inputs: int, outputs: int, action_size: int
    ):
        self.features, self.noise = np.zeros((rows, inputs), dtype), np.zeros((rows, outputs), dtype)
        self.output, self.actions = np.zeros((rows, outputs), dtype), np.zeros((rows, action_size), dtype)
        self.log_probs, self.values = np.zeros(rows, dtype), np.zeros((rows, 1), dtype)
        arrays = (self.features, self.noise, self.output, self.actions, self.log_probs, self.values)
        self.structure = structures.Acting(*arrays, rows, action_size, 1)
        self.run = library_in_use().acting(dtype, networks, self.structure)


def library_in_use() -> Any:
    """The library, of which :func:`~.obstacles.obstacle` has made sure."""
    found = library()
    assert found is not None
    return found
