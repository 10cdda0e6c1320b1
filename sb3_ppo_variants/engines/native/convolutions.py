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
from torch import nn

from sb3_ppo_variants.engines.native import structures
from sb3_ppo_variants.engines.native.library import library, library_in_use
from sb3_ppo_variants.engines.recognised import have_hooks
from sb3_ppo_variants.engines.views import Context, without_layers

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

    :param policy: a policy with layers that :meth:`find` finds
    """

    def __init__(self, policy: ActorCriticPolicy):
        *layers, _ = cast(nn.Sequential, policy.features_extractor.cnn)
        self.modules = nn.Sequential(*layers)
        """The layers themselves."""
        self._layers = cast(list[nn.Conv2d], layers[::2])
        self.rest = without_layers(policy, len(layers))
        """A view of the policy that takes the output of these layers as observations."""

    @classmethod
    def find(cls, policy: ActorCriticPolicy) -> "FirstLayers | None":
        """Find the convolutions of a policy's ``NatureCNN``, or ``None`` if the library cannot compute them."""
        cnn = _plain_network(policy)
        if cnn is None or library() is None:
            return None
        channels, *size = policy.observation_space.shape or ()
        *pairs, last = cnn
        layers, others = pairs[::2], [*map(type, pairs[1::2]), type(last)]
        if others != [nn.ReLU] * len(layers) + [nn.Flatten] or find_shapes(layers, (*size, channels)) is None:
            return None
        return cls(policy)

    def __call__(self, images: np.ndarray, rows: np.ndarray) -> th.Tensor:
        """Compute the output of the layers.

        :param images: bytes of shape ``(..., channels, height, width)``, contiguous in this order or channels-last
        :param rows: the rows of the images to use, counted over the leading dimensions
        """
        images = images.reshape(-1, *images.shape[-3:])
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
        output: th.Tensor = self.modules(images.float() / 255.0)
        return output


def _plain_network(policy: ActorCriticPolicy) -> nn.Sequential | None:
    """Find the layers of a policy's ``NatureCNN`` that take bytes.

    :return: ``None`` if the policy has several networks, or if hooks or replaced methods take part in them
    """
    extractor = policy.features_extractor
    shared = extractor is policy.pi_features_extractor is policy.vf_features_extractor
    if not shared or policy.observation_space.dtype != np.uint8:
        return None
    cnn = cast(nn.Sequential, extractor.cnn)
    modules = [policy, extractor, *cnn.modules()]
    if have_hooks(modules) or any("forward" in vars(module) for module in modules):
        return None
    return cnn if [*map(type, cnn)][:2] == [nn.Conv2d, nn.ReLU] else None


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

    @property
    def image(self) -> tuple[int, ...]:
        """Height, width and channels of the images."""
        return self.images.shape[1:]

    def check(self) -> None:
        """Check that the images are bytes, and have all selected ones.

        :raises ValueError: if they are not
        :raises IndexError: if they have not
        """
        structures.fitting(self.images, "images", np.uint8, *self.images.shape)
        rows, count = self.rows, len(self.images)
        if len(rows) and not 0 <= rows.min() <= rows.max() < count:
            raise IndexError(f"rows from {rows.min()} to {rows.max()} were selected, but there are only {count}")

    def parts(self) -> list[slice]:
        """Divide the selection into parts of about the same size, at most one for each thread of PyTorch."""
        return self._divided(min(th.get_num_threads(), len(self.rows) // FEWEST_IMAGES))

    def blocks(self) -> list[slice]:
        """Divide the selection into parts of about the same size, whose number depends only on that of the images."""
        return self._divided(-(-len(self.rows) // BLOCK_IMAGES))

    def _divided(self, n_parts: int) -> list[slice]:
        bounds = np.linspace(0, len(self.rows), max(n_parts, 1) + 1).astype(int)
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
        selection.check()
        run = partial(_run, selection, shapes, weights, biases, outputs)
        run_in_parallel([partial(run, part) for part in selection.parts()])
        ctx.selection, ctx.shapes = selection, shapes
        ctx.save_for_backward(*weights, *biases, *outputs)
        return outputs[-1].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Context, *gradients: th.Tensor) -> tuple[th.Tensor | None, ...]:
        n, saved = len(ctx.shapes), ctx.saved_tensors
        run = partial(_run, ctx.selection, ctx.shapes, saved[:n], saved[n : 2 * n], saved[2 * n :])
        d_output = gradients[0].permute(0, 2, 3, 1).contiguous()
        found = run_in_parallel([partial(run, block, d_output[block]) for block in ctx.selection.blocks()])
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
        structures.Convolution(*map(_array, tensors), shape.filters, shape.size, shape.step)
        for shape, tensors in zip(shapes, zip(*columns, strict=True), strict=True)
    ]
    rows = np.ascontiguousarray(selection.rows[part], np.int64)
    arrays = (selection.images, rows, structures.as_array(layers), _array(d_output))
    structure = structures.Convolutions(*arrays, len(rows), *selection.image, len(layers))
    library_in_use().convolve(structure, backward=d_output is not None)
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
