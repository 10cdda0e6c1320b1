"""Multilayer perceptrons over arrays, with hand-written gradients.

Weights have PyTorch's layout, ``(outputs, inputs)``. Weights, biases and activations may have one additional leading
dimension: it stacks several networks of the same shape, and each product is then batched over all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Activation(NamedTuple):
    """An activation function whose derivative follows from its value."""

    apply: Callable[[np.ndarray, np.ndarray], Any]
    """Writes f(z) to the second argument, where z is the first."""
    chain: Callable[[np.ndarray, np.ndarray], None]
    """Replaces the first argument, dL/df(z), by dL/dz. The second argument is f(z)."""


def _chain_tanh(d: np.ndarray, h: np.ndarray) -> None:
    slope = h * h
    np.subtract(1.0, slope, out=slope)
    d *= slope


def _relu(z: np.ndarray, out: np.ndarray) -> None:
    np.maximum(z, 0.0, out=out)


def _chain_relu(d: np.ndarray, h: np.ndarray) -> None:
    d *= h > 0.0


TANH = Activation(np.tanh, _chain_tanh)
RELU = Activation(_relu, _chain_relu)


class Linear:
    """x W^T + b.

    :param weight: W, shape ``(..., outputs, inputs)``
    :param bias: b, shape ``(..., 1, outputs)``
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray):
        self.weight = weight
        self.bias = bias
        self._transposed = weight.swapaxes(-1, -2)
        # For a single network np.dot computes the same product with less overhead.
        self._product: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.dot if weight.ndim == 2 else np.matmul

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return outputs of shape ``(..., batch, outputs)`` for inputs of shape ``(..., batch, inputs)``."""
        y = self._product(x, self._transposed)
        y += self.bias
        return y

    def gradient(self, x: np.ndarray, d: np.ndarray, into: "Linear") -> None:
        """Write dL/dW and dL/db.

        :param x: the inputs
        :param d: dL/dy
        :param into: arrays for the gradients, in the shapes of the layer's parameters
        """
        np.matmul(d.swapaxes(-1, -2), x, out=into.weight)
        # BLAS computes the sum as a product with ones.
        np.matmul(np.ones((1, d.shape[-2]), d.dtype), d, out=into.bias)


class Mlp:
    """Linear layers, each followed by the activation; without layers, the identity."""

    def __init__(self, layers: Sequence[Linear], activation: Activation):
        self._layers = layers
        self._activation = activation

    def forward(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the input, followed by the output of every layer.

        :param x: shape ``(batch, inputs)``
        """
        outputs = [x]
        for layer in self._layers:
            z = layer.forward(outputs[-1])
            self._activation.apply(z, z)
            outputs.append(z)
        return outputs

    def gradient(self, outputs: list[np.ndarray], d: np.ndarray, into: Sequence[Linear]) -> None:
        """Write the gradients of all layers.

        :param outputs: the result of :meth:`forward`
        :param d: dL/d ``outputs[-1]``; overwritten
        :param into: arrays for the gradients, layer by layer
        """
        for i in reversed(range(len(self._layers))):
            self._activation.chain(d, outputs[i + 1])
            self._layers[i].gradient(outputs[i], d, into[i])
            if i > 0:
                d = np.matmul(d, self._layers[i].weight)
