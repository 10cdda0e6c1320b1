"""The first layer of SB3's convolutional network, computed by the native library."""

import ctypes
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch as th

from sb3_ppo_variants.backends.native.library import library
from sb3_ppo_variants.backends.native.structures import Images, are_singles, check_rows, fitting

FILTERS, CHANNELS, SIZE, STEP = 32, 4, 8, 4


class Taken(NamedTuple):
    """A selection of images.

    :param images: bytes of shape ``(..., 4, height, width)``, contiguous in this order or channels-last
    :param rows: the selected images, counted over the leading dimensions
    """

    images: np.ndarray
    rows: np.ndarray

    def structure(self) -> Images:
        """Return the structure that the library reads.

        :raises ValueError: if the images have another type or shape than the library takes
        :raises IndexError: if a selected image does not exist
        """
        *leading, _, height, width = self.images.shape
        fitting(self.images, "images", np.uint8, *leading, CHANNELS, max(height, SIZE), max(width, SIZE))
        check_rows(self.rows, prod(leading))
        in_planes = self.images.flags.c_contiguous
        array = self.images if in_planes else np.moveaxis(self.images, -3, -1)
        return Images(array, np.ascontiguousarray(self.rows, np.int64), len(self.rows), height, width, in_planes)


@cache
def available() -> bool:
    """Whether the library was built and the processor has the instructions for this layer."""
    built = library()
    return built is not None and bool(built.functions.ppo_may_filter())


def _call(name: str, images: Images, *tensors: th.Tensor) -> None:
    for tensor in tensors:
        if not are_singles(tensor) or not tensor.is_contiguous():
            raise ValueError(f"the library takes contiguous numbers in single precision, not {tensor.dtype}")
    found = library()
    assert found is not None
    function: Callable[..., int] = getattr(found.functions, name)
    size = function(ctypes.byref(images), *[None] * (len(tensors) + 1))
    memory = th.zeros(size, dtype=th.uint8)  # PyTorch aligns memory to cache lines.
    function(ctypes.byref(images), *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (*tensors, memory)))


class Filtered(th.autograd.Function):
    """A convolution of images of bytes with 32 filters of 8 x 8 pixels and a stride of 4, followed by ReLU.

    ``Filtered.apply(weight, bias, taken)`` returns a single-precision tensor in channels-last layout. Products are
    exact and sums are rounded to single precision, so this is as precise as single-precision arithmetic.
    """

    @staticmethod
    def forward(ctx: Any, weight: th.Tensor, bias: th.Tensor, taken: Taken) -> th.Tensor:
        if weight.shape != (FILTERS, CHANNELS, SIZE, SIZE) or bias.shape != (FILTERS,):
            raise ValueError(
                f"the library cannot filter with parameters of shapes {(*weight.shape,)}, {(*bias.shape,)}"
            )
        height, width = ((length - SIZE) // STEP + 1 for length in taken.images.shape[-2:])
        output = th.empty((len(taken.rows), height, width, FILTERS), dtype=th.float32)
        _call("ppo_filter", taken.structure(), _filters_last(weight), bias.detach().contiguous(), output)
        ctx.taken = taken
        ctx.save_for_backward(output)
        return output.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: th.Tensor) -> tuple[th.Tensor, th.Tensor, None]:
        (output,) = ctx.saved_tensors
        d_weight = th.zeros((FILTERS, SIZE, SIZE, CHANNELS), dtype=th.float32)
        d_bias = th.zeros(FILTERS, dtype=th.float32)
        pixels = gradient.permute(0, 2, 3, 1).contiguous()
        _call("ppo_filter_gradient", ctx.taken.structure(), output, pixels, d_weight, d_bias)
        return d_weight.permute(0, 3, 1, 2), d_bias, None


def _filters_last(weight: th.Tensor) -> th.Tensor:
    """Return filters in the layout that the library takes, channels last."""
    return weight.detach().permute(0, 2, 3, 1).contiguous()
