"""The convolutions of SB3's network for images on bytes, computed by the native library.

PyTorch computes one layer after the other, and what a layer computes for a minibatch does not fit into the cache. The
library passes one image through all convolutions, and then the next.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial, reduce
from itertools import pairwise
from operator import add
from typing import NamedTuple, TypeGuard, TypeVar, cast

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.recognised import ObstacleError
from sb3_ppo_variants.engines.views import Context

Computed = TypeVar("Computed")

# The library computes this many filters, or numbers in a row of a filter, at a time. In the first layer, fewer numbers
# are enough, because there is no gradient with respect to images.
AT_ONCE, AT_ONCE_IN_FIRST = 32, 8
# With fewer images, starting a thread takes longer than it saves.
FEWEST_IMAGES = 4
# Images whose gradients are added up at a time, and then added to those of the others. Their number decides about
# rounding, so it does not depend on the number of threads.
BLOCK_IMAGES = 32


class Shape(NamedTuple):
    """The shape of a convolution without padding: square filters, and the same step in both directions.

    :param height: that of the output
    :param width: that of the output
    """

    filters: int
    size: int
    step: int
    height: int
    width: int


class FirstLayers:
    """The convolutions of a policy, each with its ReLU, and the scaling of bytes to [0, 1] before them.

    :param policy: the policy
    :raises ObstacleError: if the library cannot compute them
    """

    def __init__(self, policy: ActorCriticPolicy):
        extractor, space = policy.features_extractor, policy.observation_space
        for each in (extractor, policy.pi_features_extractor, policy.vf_features_extractor):
            if type(each) is not NatureCNN:
                raise ObstacleError(f"features come from a {type(each).__name__}")
            if each is not extractor:
                raise ObstacleError("actor and critic have different features")
        if space.dtype != np.uint8:
            raise ObstacleError(f"images are {space.dtype}, not bytes")
        if not (policy.normalize_images and is_image_space(space)):
            raise ObstacleError("images are not scaled to [0, 1]")
        if not type(extractor.cnn) is type(extractor.linear) is nn.Sequential:
            raise ObstacleError("the layers of the NatureCNN were replaced")
        *layers, last = extractor.cnn
        self._modules, self._layers = nn.Sequential(*layers), cast(list[nn.Conv2d], layers[::2])
        others, (channels, *size) = [*map(type, layers[1::2]), type(last)], space.shape or ()
        is_usual = others == [nn.ReLU] * len(self._layers) + [nn.Flatten]
        if not is_usual or find_shapes(self._layers, (*size, channels)) is None:
            raise ObstacleError("the native library does not compute these convolutions")

    def __call__(self, images: np.ndarray, rows: np.ndarray) -> th.Tensor:
        """Compute the output of the layers.

        :param images: bytes of shape ``(n, channels, height, width)``, contiguous in this order or channels-last
        :param rows: the rows of the images to use
        """
        channels, *size = images.shape[1:]
        shapes = find_shapes(self._layers, (*size, channels))
        if shapes is None:  # A callback has changed the layers.
            return self.by_torch(th.from_numpy(np.ascontiguousarray(images[rows])))
        weights, biases = [layer.weight for layer in self._layers], [layer.bias for layer in self._layers]
        selection = Selection(np.ascontiguousarray(np.moveaxis(images, 1, -1)), rows)
        output: th.Tensor = Convolve.apply(selection, shapes, *weights, *biases)  # type: ignore[no-untyped-call]
        return output

    def by_torch(self, images: th.Tensor) -> th.Tensor:
        """Compute the output of the layers with PyTorch, for numbers of any type from 0 to 255."""
        output: th.Tensor = self._modules(images.float() / 255.0)
        return output


def find_shapes(layers: Iterable[nn.Module], image: Sequence[int]) -> list[Shape] | None:
    """Find the shapes of consecutive layers, or ``None`` if the library cannot compute them. It does not check them.

    :param image: height, width and channels of the images
    """
    height, width, channels = image
    shapes: list[Shape] = []
    for layer in layers:
        if not _is_plain(layer):
            return None
        weight, bias, step = layer.weight, cast(th.Tensor, layer.bias), layer.stride[0]
        filters, _, size, _ = weight.shape
        fit = weight.shape == (filters, channels, size, size) and bias.shape == (filters,)
        fit = fit and _is_single(weight) and _is_single(bias)
        at_once = AT_ONCE if shapes else AT_ONCE_IN_FIRST
        if not fit or filters % AT_ONCE or channels * size % at_once or not 1 <= size <= min(height, width):
            return None
        height, width, channels = (height - size) // step + 1, (width - size) // step + 1, filters
        shapes.append(Shape(filters, size, step, height, width))
    return shapes


def _is_plain(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a layer is a convolution with biases, without padding, and with the same step in both directions."""
    if type(layer) is not nn.Conv2d or layer.bias is None or layer.weight.ndim != 4:
        return False
    others = (layer.groups, layer.padding_mode, layer.padding, layer.dilation)
    return others == (1, "zeros", (0, 0), (1, 1)) and len({*layer.stride}) == 1 and layer.stride[0] >= 1


def _is_single(tensor: th.Tensor) -> bool:
    """Whether a tensor has numbers in single precision that the library can read, once they are contiguous."""
    return tensor.dtype == th.float32 and tensor.device.type == "cpu" and tensor.data_ptr() % tensor.itemsize == 0


class Selection(NamedTuple):
    """A selection of images.

    :param images: contiguous bytes of shape ``(n, height, width, channels)``
    :param rows: the selected images
    """

    images: np.ndarray
    rows: np.ndarray


def divide_rows(count: int, n_parts: int) -> list[slice]:
    """Divide rows into parts of about the same size."""
    bounds = np.linspace(0, count, max(n_parts, 1) + 1).astype(int)
    return [slice(start, end) for start, end in pairwise(bounds.tolist())]


class Convolve(th.autograd.Function):
    """Convolutions, each followed by ReLU, of images of bytes.

    ``Convolve.apply(selection, shapes, *parameters)`` returns a single-precision tensor in channels-last layout. The
    shapes are those of :func:`find_shapes`, and the parameters are the weights of all layers, and then their biases.
    Bytes are scaled to [0, 1].
    """

    @staticmethod
    def forward(ctx: Context, selection: Selection, shapes: Sequence[Shape], *parameters: th.Tensor) -> th.Tensor:
        n, count = len(shapes), len(selection.rows)
        # The library takes filters that are channels-last.
        weights = [weight.detach().permute(0, 2, 3, 1).contiguous() for weight in parameters[:n]]
        biases = [bias.detach().contiguous() for bias in parameters[n:]]
        sizes = [(count, each.height, each.width, each.filters) for each in shapes]
        outputs = [th.empty(size, dtype=th.float32, device="cpu") for size in sizes]
        library.fitting(selection.images, "images", np.uint8, *selection.images.shape)
        if count and not 0 <= selection.rows.min() <= selection.rows.max() < len(selection.images):
            raise IndexError(f"rows of {len(selection.images)} images were selected that there are not")
        run = partial(_run, selection, shapes, weights, biases, outputs)
        parts = divide_rows(count, min(th.get_num_threads(), count // FEWEST_IMAGES))
        run_in_parallel([partial(run, part) for part in parts])
        ctx.selection, ctx.shapes = selection, shapes
        ctx.save_for_backward(*weights, *biases, *outputs)
        return outputs[-1].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Context, *gradients: th.Tensor) -> tuple[th.Tensor | None, ...]:
        n, saved = len(ctx.shapes), ctx.saved_tensors
        run = partial(_run, ctx.selection, ctx.shapes, saved[:n], saved[n : 2 * n], saved[2 * n :])
        d_output = gradients[0].permute(0, 2, 3, 1).contiguous()
        blocks = divide_rows(len(d_output), -(-len(d_output) // BLOCK_IMAGES))
        found = run_in_parallel([partial(run, block, d_output[block]) for block in blocks])
        sums = [reduce(add, parts) for parts in zip(*found, strict=True)]
        return None, None, *(d_weight.permute(0, 3, 1, 2) for d_weight in sums[:n]), *sums[n:]


def _run(
    selection: Selection,
    shapes: Sequence[Shape],
    weights: Sequence[th.Tensor],
    biases: Sequence[th.Tensor],
    outputs: Sequence[th.Tensor],
    part: slice,
    d_output: th.Tensor | None = None,
) -> list[th.Tensor]:
    """Compute the outputs of layers for a part of the selected images, or from these the gradients.

    :param d_output: for the gradients, the one with respect to the output for this part of the images
    :return: the gradients of all weights, and then of all biases
    """
    n = len(shapes)
    gradients = [None if d_output is None else th.zeros_like(each) for each in (*weights, *biases)]
    columns = (weights, biases, gradients[:n], gradients[n:], [output[part] for output in outputs])
    layers = [
        library.Convolution(*map(_array, tensors), shape.filters, shape.size, shape.step)
        for shape, tensors in zip(shapes, zip(*columns, strict=True), strict=True)
    ]
    rows = np.ascontiguousarray(selection.rows[part], np.int64)
    arrays = (selection.images, rows, library.as_array(layers), _array(d_output))
    structure = library.Convolutions(*arrays, len(rows), *selection.images.shape[1:], len(layers))
    name = "ppo_convolve" if d_output is None else "ppo_convolve_backward"
    library.library_in_use().with_memory(name, structure)()
    return [gradient for gradient in gradients if gradient is not None]


def _array(tensor: th.Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()


def run_in_parallel(calls: Sequence[Callable[[], Computed]]) -> list[Computed]:
    """Make all calls, in this thread and as many others as PyTorch uses, and return their results."""
    results: dict[int, Computed] = {}
    remaining = enumerate(calls)  # Each thread takes the next call, which the GIL lets only one of them do at a time.

    def work() -> None:
        for i, call in remaining:
            results[i] = call()

    others = min(th.get_num_threads(), len(calls)) - 1
    futures = [_threads(others).submit(work) for _ in range(others)]
    work()
    for future in futures:
        future.result()
    return [results[i] for i in range(len(calls))]


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="sb3_ppo_variants")


if hasattr(os, "register_at_fork"):  # Not on Windows.
    # The threads do not exist in a forked process.
    os.register_at_fork(after_in_child=_threads.cache_clear)
