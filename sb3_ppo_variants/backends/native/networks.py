"""The networks of a policy as the library takes them."""

from collections.abc import Callable, Mapping, Sequence
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
        self._action_size = len(architecture.sizes) if architecture.kind.takes_integers else self._outputs
        self._acting = structures.Acting(None, None, None, None, None, None, 0, self._action_size)
        self._run: Callable[[], object] = library_in_use().acting(self._dtype, self._structure, self._acting)

    def action_output(self, features: np.ndarray) -> np.ndarray:
        output = np.empty((len(features), self._outputs), self._dtype)
        self._call(features, None, output, None, None, None)
        return output

    def values(self, features: np.ndarray) -> np.ndarray:
        values = np.empty((len(features), 1), self._dtype)
        self._call(features, None, None, None, None, values)
        return values

    def act(self, features: np.ndarray, noise: Any) -> Acted:
        rows, dtype = len(features), self._dtype
        # A Gaussian's noise comes with its exponents.
        noise = noise[0] if isinstance(noise, tuple) else noise
        output, actions = np.empty((rows, self._outputs), dtype), np.empty((rows, self._action_size), dtype)
        log_probs, values = np.empty(rows, dtype), np.empty((rows, 1), dtype)
        self._call(features, noise, output, actions, log_probs, values)
        check_finite(output)
        takes_integers = self._architecture.kind.takes_integers
        return Acted(output, actions.astype(np.int64) if takes_integers else actions, log_probs, values)

    def _call(self, features: np.ndarray, *arrays: np.ndarray | None) -> None:
        """Fill the arrays that follow ``features`` in :class:`~.structures.Acting`, those that are not ``None``."""
        if features.shape[1:] != (self._inputs,):
            raise ValueError(f"features of the shape {features.shape}; allowed: (n, {self._inputs})")
        features = np.ascontiguousarray(features)
        acting = self._acting
        acting.features, acting.rows = features.ctypes.data, len(features)
        for name, array in zip(("noise", "outputs", "actions", "log_probs", "values"), arrays, strict=True):
            setattr(acting, name, None if array is None else array.ctypes.data)
        self._run()


def library_in_use() -> Any:
    """The library, of which :func:`~.obstacles.obstacle` has made sure."""
    found = library()
    assert found is not None
    return found
