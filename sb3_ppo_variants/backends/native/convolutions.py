"""Convolutions of images of bytes, computed by the native library."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch as th

from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.networks import library_in_use


class Shape(NamedTuple):
    """The shape of a convolution without padding: square filters, and the same step in both directions."""

    filters: int
    channels: int
    size: int
    step: int

    def output(self, length: int) -> int:
        """Return the height or width of the output for an image of this height or width."""
        return (length - self.size) // self.step + 1


class Taken(NamedTuple):
    """A selection of images.

    :param images: contiguous bytes of shape ``(n, height, width, channels)``
    :param rows: the selected images
    """

    images: np.ndarray
    rows: np.ndarray


class Convolved(th.autograd.Function):
    """Convolutions, each followed by ReLU, of images that are scaled from bytes to [0, 1].

    ``Convolved.apply(taken, shapes, *parameters)`` returns a single-precision tensor in channels-last layout. The
    parameters are the weights of all layers, and then their biases.
    """

    @staticmethod
    def forward(ctx: Any, taken: Taken, shapes: Sequence[Shape], *parameters: th.Tensor) -> th.Tensor:
        n, (_, *lengths, _) = len(shapes), taken.images.shape
        weights, biases = [*map(_filters_last, parameters[:n])], [bias.detach() for bias in parameters[n:]]
        outputs = []
        for shape in shapes:
            lengths = [shape.output(length) for length in lengths]
            outputs.append(th.empty((len(taken.rows), *lengths, shape.filters), dtype=th.float32))
        none = [None] * n
        _call("ppo_convolve", taken, None, [weights, biases, none, none, outputs], shapes)
        ctx.taken, ctx.shapes = taken, shapes
        ctx.save_for_backward(*weights, *biases, *outputs)
        return outputs[-1].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: th.Tensor) -> tuple[th.Tensor | None, ...]:
        n, saved = len(ctx.shapes), ctx.saved_tensors
        weights, biases, outputs = saved[:n], saved[n : 2 * n], saved[2 * n :]
        d_weights, d_biases = ([*map(th.empty_like, of)] for of in (weights, biases))
        d_output = gradients[0].permute(0, 2, 3, 1).contiguous()
        columns = [weights, biases, d_weights, d_biases, outputs]
        _call("ppo_convolve_backward", ctx.taken, d_output, columns, ctx.shapes)
        return None, None, *(d.permute(0, 3, 1, 2) for d in d_weights), *d_biases


def _filters_last(weight: th.Tensor) -> th.Tensor:
    """Return filters in the layout that the library takes, channels last."""
    return weight.detach().permute(0, 2, 3, 1).contiguous()


def _call(
    name: str,
    taken: Taken,
    d_output: th.Tensor | None,
    columns: Sequence[Sequence[th.Tensor | None]],
    shapes: Sequence[Shape],
) -> None:
    """Call a function of the library.

    :param columns: for each pointer of the structure of a layer, the tensors of all layers
    """
    layers = [
        structures.Convolution(*map(_array, tensors), shape.filters, shape.size, shape.step)
        for *tensors, shape in zip(*columns, shapes, strict=True)
    ]
    _, *size = taken.images.shape
    rows = np.ascontiguousarray(taken.rows, np.int64)
    counts = (len(rows), *size, len(layers))
    structure = structures.Convolutions(taken.images, rows, structures.as_array(layers), _array(d_output), *counts)
    function: Any = getattr(library_in_use().functions, name)
    memory = th.zeros(function(ctypes.byref(structure), None), dtype=th.uint8)  # PyTorch aligns memory to cache lines.
    function(ctypes.byref(structure), ctypes.c_void_p(memory.data_ptr()))


def _array(tensor: th.Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()
