"""SB3's convolutional network for images on a CPU. The computation is the same as in the reference engine.

The native library computes all convolutions, and PyTorch the rest. PyTorch would compute one layer after the other, but
what a layer computes for a minibatch does not fit into the cache. The library passes one image after the other through
all convolutions. The large linear layer uses oneDNN, the library of PyTorch's own convolutions.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial, reduce
from itertools import pairwise
from operator import add
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.recognised import require
from sb3_ppo_variants.engines.sequences import make_view

Computed = TypeVar("Computed")
# The context of an autograd function, to which PyTorch and the function add attributes.
Context: TypeAlias = Any
# The filters, sizes and steps of the convolutions of SB3's NatureCNN. The library takes multiples of 32 filters.
CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
NATURE_CNN = [nn.Conv2d, nn.ReLU] * len(CONVOLUTIONS) + [nn.Flatten]
# With fewer images, starting a thread takes longer than it saves.
FEWEST_IMAGES = 4
# Images whose gradients are added up at a time, and then added to those of the others. Their number decides about
# rounding, so it does not depend on the number of threads.
BLOCK_IMAGES = 32
# Smaller linear layers take so little time that the smaller overhead of MKL counts.
SMALLEST = 2**16


class FirstLayers:
    """The convolutions of a policy, each with its ReLU, and the scaling of bytes to [0, 1] before them.

    :param policy: the policy
    :raises ObstacleError: if the library cannot compute them
    """

    def __init__(self, policy: ActorCriticPolicy):
        extractor, space = cast(Any, policy.features_extractor), policy.observation_space
        require(type(extractor) is NatureCNN, f"features come from a {type(extractor).__name__}")
        require(policy.share_features_extractor, "actor and critic have different features")
        require(space.dtype == np.uint8, f"images are {space.dtype}, not bytes")
        require(policy.normalize_images and is_image_space(space), "images are not scaled to [0, 1]")
        modules = [*extractor.cnn.children()]
        is_plain = type(extractor.cnn) is type(extractor.linear) is nn.Sequential
        is_plain = is_plain and [*map(type, modules)] == NATURE_CNN
        self._convolutions, self._shape = modules[:-1:2], space.shape or ()
        channels = self._shape[0]
        for layer, (filters, size, step) in zip(self._convolutions, CONVOLUTIONS, strict=False):
            is_plain = is_plain and _is_convolution(layer, channels, filters, size, step)
            channels = filters
        require(is_plain, "the layers are not those of SB3's NatureCNN")
        self._modules = nn.Sequential(*modules[:-1])

    def __deepcopy__(self, memo: dict[int, Any]) -> "FirstLayers":
        """Return itself: a copy of a policy shares its parameters, and there is nothing else to copy."""
        return self

    def __call__(self, images: th.Tensor) -> th.Tensor:
        """Compute the output of the layers.

        :param images: numbers from 0 to 255, shape ``(n, channels, height, width)``
        """
        if images.dtype != th.uint8:  # A wrapper may return other numbers than the space has.
            output: th.Tensor = self._modules(images.float() / 255.0)
            return output
        if not images.is_contiguous(memory_format=th.channels_last):
            images = images.contiguous()
        weights, biases = [each.weight for each in self._convolutions], [each.bias for each in self._convolutions]
        output = Convolve.apply(images, *weights, *biases)  # type: ignore[no-untyped-call]
        return output


def _is_convolution(layer: Any, channels: int, filters: int, size: int, step: int) -> bool:
    """Whether a convolution has a bias, no padding, and these sizes. The library does not check them."""
    shapes = [layer.weight.shape, None if layer.bias is None else layer.bias.shape]
    is_single = layer.weight.dtype == th.float32 and layer.weight.is_cpu
    others = layer.stride, layer.padding, layer.dilation
    return (
        is_single
        and shapes == [(filters, channels, size, size), (filters,)]
        and others == ((step,) * 2, (0, 0), (1, 1))
    )


def divide_rows(count: int, n_parts: int) -> list[slice]:
    """Divide rows into parts of about the same size."""
    bounds = np.linspace(0, count, max(n_parts, 1) + 1).astype(int)
    return [slice(start, end) for start, end in pairwise(bounds.tolist())]


class Convolve(th.autograd.Function):
    """The convolutions of a NatureCNN, each followed by ReLU, of images of bytes, which are scaled to [0, 1].

    ``Convolve.apply(images, *parameters)`` returns single precision in channels-last layout. The images have the shape
    ``(n, channels, height, width)``, and either layout. The parameters are all weights, and then all biases.
    """

    @staticmethod
    def forward(ctx: Context, images: th.Tensor, *parameters: th.Tensor) -> th.Tensor:
        (count, _, height, width), n = images.shape, len(CONVOLUTIONS)
        # The library takes filters that are channels-last.
        weights = [weight.detach().permute(0, 2, 3, 1).contiguous() for weight in parameters[:n]]
        biases = [bias.detach().contiguous() for bias in parameters[n:]]
        outputs = []
        for filters, size, step in CONVOLUTIONS:
            height, width = (height - size) // step + 1, (width - size) // step + 1
            outputs.append(th.empty((count, height, width, filters), dtype=th.float32, device="cpu"))
        parts = divide_rows(count, min(th.get_num_threads(), count // FEWEST_IMAGES))
        run_in_parallel([partial(_run, images, weights, biases, outputs, part) for part in parts])
        ctx.save_for_backward(images, *weights, *biases, *outputs)
        return outputs[-1].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Context, *gradients: th.Tensor) -> tuple[th.Tensor | None, ...]:
        n, (images, *saved) = len(CONVOLUTIONS), ctx.saved_tensors
        run = partial(_run, images, saved[:n], saved[n : 2 * n], saved[2 * n :])
        d_output = gradients[0].permute(0, 2, 3, 1).contiguous()
        blocks = divide_rows(len(d_output), -(-len(d_output) // BLOCK_IMAGES))
        found = run_in_parallel([partial(run, block, d_output[block]) for block in blocks])
        sums = [reduce(add, parts) for parts in zip(*found, strict=True)]
        return None, *(d_weight.permute(0, 3, 1, 2) for d_weight in sums[:n]), *sums[n:]


def _run(
    images: th.Tensor,
    weights: Sequence[th.Tensor],
    biases: Sequence[th.Tensor],
    outputs: Sequence[th.Tensor],
    part: slice,
    d_output: th.Tensor | None = None,
) -> list[th.Tensor]:
    """Compute the outputs of layers for a part of the images, or from these the gradients.

    :param d_output: for the gradients, the one with respect to the output for this part of the images
    :return: the gradients of all weights, and then of all biases
    """
    count, channels, height, width = images[part].shape
    is_last = images.is_contiguous(memory_format=th.channels_last)
    n, gradients = len(CONVOLUTIONS), [] if d_output is None else [th.zeros_like(each) for each in (*weights, *biases)]
    layers = []
    for i, (filters, size, step) in enumerate(CONVOLUTIONS):
        arrays = {"weight": weights[i].numpy(), "bias": biases[i].numpy(), "output": outputs[i][part].numpy()}
        if gradients:
            arrays |= {"d_weight": gradients[i].numpy(), "d_bias": gradients[n + i].numpy()}
        layers.append(library.Convolution(**arrays, filters=filters, size=size, step=step))
    structure = library.Convolutions(
        images=(images.permute(0, 2, 3, 1) if is_last else images)[part].numpy(), layers=library.as_array(layers),
        d_output=None if d_output is None else d_output.numpy(), count=count, height=height, width=width,
        channels=channels, planes=1 if is_last else channels, n_layers=n,
    )  # fmt: skip
    library.with_memory("ppo_convolve_backward" if gradients else "ppo_convolve", structure)()
    return gradients


def run_in_parallel(calls: Sequence[Callable[[], Computed]]) -> list[Computed]:
    """Make all calls, in as many threads as PyTorch uses, and return their results."""
    threads = min(th.get_num_threads(), len(calls))
    if threads < 2:
        return [call() for call in calls]
    return [*_threads(threads).map(lambda call: call(), calls)]


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="sb3_ppo_variants")


if hasattr(os, "register_at_fork"):  # Not on Windows.
    # The threads do not exist in a forked process.
    os.register_at_fork(after_in_child=_threads.cache_clear)


class MultipliedByOneDNN(nn.Module):
    """A linear layer that oneDNN multiplies.

    PyTorch multiplies single-precision matrices with MKL, which leaves half of the vector units of AMD's processors
    idle. oneDNN, with which PyTorch convolves, uses all of them.

    :param layer: the layer, whose parameters it uses
    """

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, rows: th.Tensor) -> th.Tensor:
        """Compute what the layer computes, up to rounding."""
        product: th.Tensor = Product.apply(rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return product


class Product(th.autograd.Function):
    """``Product.apply(rows, weight, bias)`` equals ``functional.linear`` for two-dimensional rows, up to rounding."""

    @staticmethod
    def forward(ctx: Context, rows: th.Tensor, weight: th.Tensor, bias: th.Tensor) -> th.Tensor:
        ctx.save_for_backward(rows, weight)
        return multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Context, *gradients: th.Tensor) -> tuple[th.Tensor, ...]:
        (gradient,), (rows, weight) = gradients, ctx.saved_tensors
        return multiply(gradient, weight.t()), multiply(gradient.t(), rows.t()), gradient.sum(0)


def multiply(a: th.Tensor, b: th.Tensor, bias: th.Tensor | None = None) -> th.Tensor:
    """Compute ``a`` times the transpose of ``b``, plus a bias, with oneDNN."""
    product: th.Tensor = th.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return product


def view_images(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Make a view of a policy whose methods compute the first layers of its network with the library."""
    extractor = cast(Any, policy.features_extractor)
    large, *others = extractor.linear
    both = th.backends.mkl.is_available() and th.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if both and type(large) is nn.Linear and large.bias is not None and large.weight.numel() >= SMALLEST:
        large = MultipliedByOneDNN(large)
    # The library computes all layers of the network except the last one, which flattens the output.
    rest = make_view(extractor, cnn=extractor.cnn[-1:], linear=nn.Sequential(large, *others))
    view = make_view(policy, features_extractor=rest, pi_features_extractor=rest, vf_features_extractor=rest)
    view.normalize_images = False
    for name in ("forward", "evaluate_actions", "get_distribution", "predict_values"):
        setattr(view, name, partial(_compute_rest, FirstLayers(policy), getattr(view, name)))
    return view


def _compute_rest(first: FirstLayers, method: Callable[..., Any], images: th.Tensor, *args: Any, **kwargs: Any) -> Any:
    return method(first(images), *args, **kwargs)
