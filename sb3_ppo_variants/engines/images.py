"""SB3's convolutional network for images on a CPU. The computation is the same as in the reference engine.

The native library computes all convolutions, and PyTorch the rest. PyTorch would compute one layer after the other, but
what a layer computes for a minibatch does not fit into the cache. The library passes one image after the other through
all convolutions. The large linear layer uses oneDNN, the library of PyTorch's own convolutions.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial, reduce
from itertools import pairwise
from operator import add
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.recognised import require
from sb3_ppo_variants.engines.reference import TorchActor, TorchUpdate
from sb3_ppo_variants.engines.sequences import fuse_adam, make_view
from sb3_ppo_variants.policies.kind import Acted, ActingPolicy
from sb3_ppo_variants.rollout import ROWS_AT_ONCE, Samples, in_rows
from sb3_ppo_variants.update import Descent, DescentResult, UpdatePlan

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

    def __call__(self, images: np.ndarray, rows: np.ndarray) -> th.Tensor:
        """Compute the output of the layers.

        :param images: bytes of shape ``(n, channels, height, width)``, contiguous in this order or channels-last
        :param rows: the rows of the images to use
        """
        library.fitting(images, "images", np.uint8, len(images), *self._shape)
        contiguous = np.ascontiguousarray(np.moveaxis(images, 1, -1))
        weights, biases = [each.weight for each in self._convolutions], [each.bias for each in self._convolutions]
        output: th.Tensor = Convolve.apply(contiguous, rows, *weights, *biases)  # type: ignore[no-untyped-call]
        return output

    def by_torch(self, images: th.Tensor) -> th.Tensor:
        """Compute the output of the layers with PyTorch, for numbers of any type from 0 to 255."""
        output: th.Tensor = self._modules(images.float() / 255.0)
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

    ``Convolve.apply(images, rows, *parameters)`` returns single precision in channels-last layout, for some rows of the
    images: contiguous bytes of shape ``(n, height, width, channels)``. The parameters are all weights, then all biases.
    """

    @staticmethod
    def forward(ctx: Context, images: np.ndarray, rows: np.ndarray, *parameters: th.Tensor) -> th.Tensor:
        count, n = len(rows), len(CONVOLUTIONS)
        # The library takes filters that are channels-last.
        weights = [weight.detach().permute(0, 2, 3, 1).contiguous() for weight in parameters[:n]]
        biases = [bias.detach().contiguous() for bias in parameters[n:]]
        height, width = images.shape[1:3]
        outputs = []
        for filters, size, step in CONVOLUTIONS:
            height, width = (height - size) // step + 1, (width - size) // step + 1
            outputs.append(th.empty((count, height, width, filters), dtype=th.float32, device="cpu"))
        if count and not 0 <= rows.min() <= rows.max() < len(images):
            raise IndexError(f"rows of {len(images)} images were selected that there are not")
        run = partial(_run, images, rows, weights, biases, outputs)
        parts = divide_rows(count, min(th.get_num_threads(), count // FEWEST_IMAGES))
        run_in_parallel([partial(run, part) for part in parts])
        ctx.images, ctx.rows = images, rows
        ctx.save_for_backward(*weights, *biases, *outputs)
        return outputs[-1].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Context, *gradients: th.Tensor) -> tuple[th.Tensor | None, ...]:
        n, saved = len(CONVOLUTIONS), ctx.saved_tensors
        run = partial(_run, ctx.images, ctx.rows, saved[:n], saved[n : 2 * n], saved[2 * n :])
        d_output = gradients[0].permute(0, 2, 3, 1).contiguous()
        blocks = divide_rows(len(d_output), -(-len(d_output) // BLOCK_IMAGES))
        found = run_in_parallel([partial(run, block, d_output[block]) for block in blocks])
        sums = [reduce(add, parts) for parts in zip(*found, strict=True)]
        return None, None, *(d_weight.permute(0, 3, 1, 2) for d_weight in sums[:n]), *sums[n:]


def _run(
    images: np.ndarray,
    rows: np.ndarray,
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
    name, gradients, n = "ppo_convolve", [], len(CONVOLUTIONS)
    if d_output is not None:
        name, gradients = "ppo_convolve_backward", [th.zeros_like(each) for each in (*weights, *biases)]
    layers = []
    for i, (filters, size, step) in enumerate(CONVOLUTIONS):
        arrays = {"weight": weights[i].numpy(), "bias": biases[i].numpy(), "output": outputs[i][part].numpy()}
        if gradients:
            arrays |= {"d_weight": gradients[i].numpy(), "d_bias": gradients[n + i].numpy()}
        layers.append(library.Convolution(**arrays, filters=filters, size=size, step=step))
    selected = np.ascontiguousarray(rows[part], np.int64)
    height, width, channels = images.shape[1:]
    structure = library.Convolutions(
        images=images,
        rows=selected,
        layers=library.as_array(layers),
        d_output=None if d_output is None else d_output.numpy(),
        count=len(selected),
        height=height,
        width=width,
        channels=channels,
        n_layers=n,
    )
    library.with_memory(name, structure)()
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


def _view_without_first_layers(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Make a view of a policy that takes the output of its first layers as observations."""
    extractor = cast(Any, policy.features_extractor)
    large, *others = extractor.linear
    both = th.backends.mkl.is_available() and th.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if both and type(large) is nn.Linear and large.bias is not None and large.weight.numel() >= SMALLEST:
        large = MultipliedByOneDNN(large)
    # The library computes all layers of the network except the last one, which flattens the output.
    rest = make_view(extractor, cnn=extractor.cnn[-1:], linear=nn.Sequential(large, *others))
    view = make_view(policy, features_extractor=rest, pi_features_extractor=rest, vf_features_extractor=rest)
    view.normalize_images = False
    return view


class ImageUpdate(TorchUpdate):
    """The same update with the first layers of the policy computed apart.

    :param plan: the plan of the update
    """

    def __init__(self, plan: UpdatePlan):
        self._first, buffer = FirstLayers(plan.kind.policy), plan.buffer
        rows = np.arange(buffer.buffer_size * buffer.n_envs)
        # The places of the rows in the array of observations, which has not been flattened if nothing has read it yet.
        by_step = rows % buffer.buffer_size * buffer.n_envs + rows // buffer.buffer_size
        self._places = rows if buffer.generator_ready else by_step
        images = buffer.observations.reshape(-1, *buffer.observations.shape[-3:])
        self._images = np.moveaxis(np.ascontiguousarray(np.moveaxis(images, 1, -1)), -1, 1)
        columns = (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
        actions = in_rows(buffer, buffer.actions).astype(np.float32, copy=False)
        self._others = [*map(th.from_numpy, (actions, *(in_rows(buffer, each).ravel() for each in columns)))]
        masks: np.ndarray | None = getattr(buffer, "action_masks", None)
        self._masks = None if masks is None else th.from_numpy(in_rows(buffer, masks))
        super().__init__(replace(plan, kind=type(plan.kind)(_view_without_first_layers(plan.kind.policy))))

    def distributions(self) -> Iterator[Distribution]:
        for start in range(0, len(self._places), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            masks: tuple[th.Tensor, ...] = () if self._masks is None else (self._masks[rows],)
            yield self._plan.kind.policy.get_distribution(self._first(self._images, self._places[rows]), *masks)

    def minibatches(self) -> Generator[Samples]:
        permutation = np.random.permutation(len(self._places))
        for start in range(0, len(permutation), self._plan.batch_size):
            rows = permutation[start : start + self._plan.batch_size]
            where = th.from_numpy(rows)
            others = [tensor[where] for tensor in self._others]
            masks = None if self._masks is None else self._masks[where]
            yield Samples._make([self._first(self._images, self._places[rows]), *others, masks, rows])

    def descend(self, descent: Descent) -> DescentResult:
        with fuse_adam(descent.optimizer):
            return super().descend(descent)


class ActingAfter(ActingPolicy):
    """Acts with a policy whose first layers are computed separately.

    :param first: the first layers of the policy
    :param acting: acts with the rest of the policy
    """

    def __init__(self, first: FirstLayers, acting: ActingPolicy):
        self._first, self._acting = first, acting

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        return self._acting.act(self._output(observations), episode_starts)

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        return self._acting.terminal_value(self._output(observation), env_index)

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        return self._acting.last_values(self._output(observations), dones)

    def _output(self, observations: PyTorchObs) -> th.Tensor:
        assert isinstance(observations, th.Tensor)
        if observations.dtype != th.uint8:  # A wrapper may return other numbers than the space has.
            return self._first.by_torch(observations)
        images = observations if observations.permute(0, 2, 3, 1).is_contiguous() else observations.contiguous()
        return self._first(images.numpy(), np.arange(len(images)))


class ImageActor(TorchActor):
    """Acts with the first layers of a policy computed apart from the rest."""

    def __init__(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer):
        super().__init__(model, type(plan.kind)(_view_without_first_layers(plan.kind.policy)), buffer)
        self._acting = ActingAfter(FirstLayers(plan.kind.policy), self._acting)
