"""Convolutions of images of bytes, computed by the native library."""

import ctypes
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch as th

from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.backends.native.networks import library_in_use
from sb3_ppo_variants.backends.native.parallel import in_parallel, parts_of
from sb3_ppo_variants.backends.native.structures import are_singles, check_rows, fitting

# The library computes this many filters, or numbers in a row of a filter, at a time. In the first layer, fewer numbers
# are enough, because there is no gradient with respect to images.
AT_ONCE, AT_ONCE_IN_FIRST = 32, 8


class Shape(NamedTuple):
    """The shape of a convolution without padding: square filters, and the same step in both directions."""

    filters: int
    channels: int
    size: int
    step: int

    def output(self, length: int) -> int:
        """Return the height or width of the output for an image of this height or width."""
        return (length - self.size) // self.step + 1


def shapes_of(
    image: Sequence[int], weights: Sequence[th.Tensor], biases: Sequence[th.Tensor], steps: Sequence[int]
) -> list[Shape] | None:
    """Return the shapes of consecutive convolutions, or ``None`` if the library cannot compute them.

    :param image: height, width and channels of the images
    :param weights: weights of the layers, shape ``(filters, channels, size, size)``
    :param biases: biases of the layers, shape ``(filters,)``
    :param steps: steps of the layers
    """
    *lengths, channels = image
    shapes: list[Shape] = []
    for weight, bias, step in zip(weights, biases, steps, strict=True):
        if weight.ndim != 4 or step < 1:
            return None
        filters, _, size, _ = weight.shape
        shape, at_once = Shape(filters, channels, size, step), AT_ONCE if shapes else AT_ONCE_IN_FIRST
        fit = weight.shape == (filters, channels, size, size) and bias.shape == (filters,)
        fit = fit and all(map(are_singles, (weight, bias)))
        if not fit or filters % AT_ONCE or channels * size % at_once or not 1 <= size <= min(lengths):
            return None
        lengths, channels = [*map(shape.output, lengths)], filters
        shapes.append(shape)
    return shapes


class Taken(NamedTuple):
    """A selection of images.

    :param images: contiguous bytes of shape ``(n, height, width, channels)``
    :param rows: the selected images
    """

    images: np.ndarray
    rows: np.ndarray

    def check(self) -> None:
        """Check that the images are bytes, and have all selected ones.

        :raises ValueError: if they are not
        :raises IndexError: if they have not
        """
        fitting(self.images, "images", np.uint8, *self.images.shape)
        check_rows(self.rows, len(self.images))


class Convolved(th.autograd.Function):
    """Convolutions, each followed by ReLU, of images that are scaled from bytes to [0, 1].

    ``Convolved.apply(taken, steps, *parameters)`` returns a single-precision tensor in channels-last layout. The
    parameters are the weights of all layers, and then their biases. It raises a ``ValueError`` if the library cannot
    compute these layers.
    """

    @staticmethod
    def forward(ctx: Any, taken: Taken, steps: Sequence[int], *parameters: th.Tensor) -> th.Tensor:
        n, (_, *lengths, _) = len(steps), taken.images.shape
        shapes = shapes_of(taken.images.shape[1:], parameters[:n], parameters[n:], steps)
        if shapes is None:
            sizes = [tuple(parameter.shape) for parameter in parameters]
            raise ValueError(f"the library cannot convolve {taken.images.shape[1:]} with parameters of shapes {sizes}")
        weights, biases = [*map(_filters_last, parameters[:n])], [bias.detach().contiguous() for bias in parameters[n:]]
        outputs = []
        for shape in shapes:
            lengths = [shape.output(length) for length in lengths]
            outputs.append(th.empty((len(taken.rows), *lengths, shape.filters), dtype=th.float32))
        taken.check()
        layers = _Layers(shapes, weights, biases, outputs)
        in_parallel([partial(layers.forward, taken, part) for part in parts_of(len(taken.rows))])
        ctx.taken, ctx.shapes = taken, shapes
        ctx.save_for_backward(*weights, *biases, *outputs)
        return outputs[-1].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: th.Tensor) -> tuple[th.Tensor | None, ...]:
        n, saved = len(ctx.shapes), ctx.saved_tensors
        layers = _Layers(ctx.shapes, saved[:n], saved[n : 2 * n], saved[2 * n :])
        d_output = gradients[0].permute(0, 2, 3, 1).contiguous()
        parts = parts_of(len(ctx.taken.rows))
        of_parts = in_parallel([partial(layers.backward, ctx.taken, d_output, part) for part in parts])
        sums = [reduce(add, of_parameter) for of_parameter in zip(*of_parts, strict=True)]
        return None, None, *(d_weight.permute(0, 3, 1, 2) for d_weight in sums[:n]), *sums[n:]


class _Layers(NamedTuple):
    """Layers with their outputs for all selected images."""

    shapes: Sequence[Shape]
    weights: Sequence[th.Tensor]
    biases: Sequence[th.Tensor]
    outputs: Sequence[th.Tensor]

    def forward(self, taken: Taken, part: slice) -> None:
        """Compute the outputs for a part of the selected images."""
        none = [None] * len(self.shapes)
        self._call("ppo_convolve", taken, None, part, none, none)

    def backward(self, taken: Taken, d_output: th.Tensor, part: slice) -> list[th.Tensor]:
        """Return the gradients of all weights, and then of all biases, from a part of the selected images."""
        d_weights, d_biases = ([*map(th.empty_like, of)] for of in (self.weights, self.biases))
        self._call("ppo_convolve_backward", taken, d_output[part], part, d_weights, d_biases)
        return d_weights + d_biases

    def _call(
        self, name: str, taken: Taken, d_output: th.Tensor | None, part: slice,
        d_weights: Sequence[th.Tensor | None], d_biases: Sequence[th.Tensor | None],
    ) -> None:  # fmt: skip
        outputs = [output[part] for output in self.outputs]
        columns = (self.weights, self.biases, d_weights, d_biases, outputs, self.shapes)
        layers = [
            structures.Convolution(*map(_array, tensors), shape.filters, shape.size, shape.step)
            for *tensors, shape in zip(*columns, strict=True)
        ]
        rows = np.ascontiguousarray(taken.rows[part], np.int64)
        counts = (len(rows), *taken.images.shape[1:], len(layers))
        structure = structures.Convolutions(taken.images, rows, structures.as_array(layers), _array(d_output), *counts)
        function: Any = getattr(library_in_use().functions, name)
        # PyTorch aligns memory to cache lines.
        memory = th.zeros(function(ctypes.byref(structure), None), dtype=th.uint8)
        function(ctypes.byref(structure), ctypes.c_void_p(memory.data_ptr()))


def _filters_last(weight: th.Tensor) -> th.Tensor:
    """Return filters in the layout that the library takes, channels last."""
    return weight.detach().permute(0, 2, 3, 1).contiguous()


def _array(tensor: th.Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()
