"""The native library computes the convolutions of SB3's convolutional network as PyTorch does."""

import multiprocessing
import os
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from torch import nn

from helpers import BOX, noise_envs
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.engines import images as images_engine
from sb3_ppo_variants.engines.images import Convolve, FirstLayers, run_in_parallel
from sb3_ppo_variants.engines.recognised import ObstacleError

pytestmark = pytest.mark.usefixtures("natively")

# Height, width and channels of images. Outputs have rows of 20, 15, 1, 14, 24 and 67 pixels in the first layer.
IMAGES = [(84, 84, 4), (64, 64, 2), (36, 36, 1), (45, 60, 3), (36, 100, 4), (40, 272, 12)]
FRAMES = spaces.Box(0, 255, (2, 45, 40), np.uint8)


def network(channels: int) -> nn.Sequential:
    th.manual_seed(0)
    layers = nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)
    return nn.Sequential(*(module for layer in layers for module in (layer, nn.ReLU())))


def convolved(layers: list[Any], images: np.ndarray, rows: np.ndarray) -> th.Tensor:
    """Compute the output for some images, of shape ``(height, width, channels)``."""
    selected = th.from_numpy(images[rows]).permute(0, 3, 1, 2)
    parameters = *(layer.weight for layer in layers), *(layer.bias for layer in layers)
    outputs = [Convolve.apply(each, *parameters) for each in (selected, selected.contiguous())]  # Both layouts.
    th.testing.assert_close(*outputs, rtol=0, atol=0, equal_nan=True)
    return outputs[len(rows) % 2]


@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("size", IMAGES)
def test_outputs_and_gradients(size: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    images, rows = rng.integers(0, 256, (5, *size), np.uint8), np.array([3, 0, 0, 4])
    single = network(size[-1])
    double = deepcopy(single).double()
    wanted = double(th.from_numpy(images[rows]).permute(0, 3, 1, 2).double() / 255)
    got = convolved([*single][::2], images, rows)
    th.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6)
    # Leave out numbers that rounding may have taken across 0.
    gradient = th.from_numpy(rng.normal(size=wanted.shape)) * ((wanted > 1e-5) | (got == 0))
    gradients = (th.autograd.grad(of, [*net.parameters()], g) for of, net, g in (
        (got, single, gradient.float()), (wanted, double, gradient)
    ))  # fmt: skip
    for found, exact in zip(*gradients, strict=True):
        scale = exact.abs().max()
        th.testing.assert_close(found.double() / scale, exact / scale, rtol=0, atol=1e-5)


def test_an_output_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter of ones adds up the 8 x 8 pixels, and a filter of minus ones gives 0."""
    monkeypatch.setattr(images_engine, "CONVOLUTIONS", ((32, 8, 4),))
    signs = th.where(th.arange(32) % 2 == 0, 1.0, -1.0)
    layer: Any = nn.Conv2d(1, 32, 8, 4)
    layer.weight.data, layer.bias.data = signs[:, None, None, None].repeat(1, 1, 8, 8), th.full((32,), 0.5)
    images = np.full((1, 12, 8, 1), 255, np.uint8)
    images[0, :4] = 0
    output = convolved([layer], images, np.array([0]))
    assert output.shape == (1, 32, 2, 1)
    assert output[0, 0, :, 0].tolist() == [32.5, 64.5] and output[0, 1].max() == 0
    d_weight, d_bias = th.autograd.grad(output.sum(), [layer.weight, layer.bias])
    # A filter's first row lies on pixels of 0 in the first of the two patches, and its last row in none.
    assert d_weight[0, 0, [0, 7], 0].tolist() == [1, 2] and d_bias[:2].tolist() == [2, 0]


@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nothing_that_is_not_finite_is_lost(value: float) -> None:
    net, images = network(1), np.ones((1, 36, 36, 1), np.uint8)
    layers: list[Any] = [*net][::2]
    with th.no_grad():
        for layer in layers:
            layer.weight.abs_()
        layers[0].weight[3, 0, 2, 2] = abs(value)
    assert not convolved(layers, images, np.zeros(1, np.int64)).isfinite().any()
    net = network(1)
    output = convolved([*net][::2], images, np.zeros(1, np.int64))
    gradient = th.zeros_like(output)
    gradient[0, int(output[0, :, 0, 0].argmax()), 0, 0] = value
    found = th.autograd.grad(output, [*net.parameters()], gradient)
    assert not any(each.isfinite().all() for each in found)


def new_policy() -> Any:
    return PPOClip("CnnPolicy", noise_envs(BOX, FRAMES), n_steps=8, batch_size=16).policy


def narrow_bias() -> nn.Conv2d:
    layer = nn.Conv2d(2, 32, 8, 4)
    layer.bias = nn.Parameter(th.zeros(31))
    return layer


@pytest.mark.parametrize(
    ("position", "layer"),
    [
        (0, nn.Conv2d(2, 32, 8, 4, padding=1)),
        (0, nn.Conv2d(2, 32, 8, 4, dilation=2)),
        (0, nn.Conv2d(2, 32, 8, (4, 2))),
        (0, nn.Conv2d(2, 32, (8, 4), 4)),
        (0, nn.Conv2d(2, 32, 8, 4, groups=2)),
        (0, nn.Conv2d(2, 32, 8, 4, bias=False)),
        (0, nn.Conv2d(2, 32, 3, 4)),
        (0, nn.Conv2d(2, 48, 8, 4)),
        (0, nn.Conv2d(2, 32, 8, 4).double()),
        (0, nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 32, 8, 4))),
        (0, nn.Conv2d(4, 32, 8, 4)),
        (0, narrow_bias()),
        (2, nn.Conv2d(64, 64, 4, 2)),
        (4, nn.Conv2d(64, 48, 3)),
        (4, nn.Conv2d(64, 64, 10)),
        (1, nn.Tanh()),
        (5, nn.Identity()),
        (6, nn.AdaptiveAvgPool2d(1)),
    ],
    ids=str,
)
def test_layers_that_do_not(position: int, layer: nn.Module) -> None:
    """The library does not check layers. With those of other shapes it would read beyond its arrays."""
    policy = new_policy()
    policy.features_extractor.cnn[position] = layer
    with pytest.raises(ObstacleError, match="not those of SB3's NatureCNN"):
        FirstLayers(policy)


@pytest.mark.parametrize("n_images", [1, 7, 9, 40, 70])
def test_any_number_of_threads_computes_the_same(n_images: int) -> None:
    images, rows = np.random.default_rng(0).integers(0, 256, (3, 36, 36, 1), np.uint8), np.arange(n_images) % 3
    net, found, before = network(1), [], th.get_num_threads()
    for n_threads in (1, 2, 3, 4, 7):
        th.set_num_threads(n_threads)
        output = convolved([*net][::2], images, rows)
        found.append([output, *th.autograd.grad(output.sum(), [*net.parameters()])])
    th.set_num_threads(before)
    for others in found[1:]:
        th.testing.assert_close(others, found[0], rtol=0, atol=0)


def in_two_threads() -> list[int]:
    th.set_num_threads(2)
    return run_in_parallel([partial(int, "1"), partial(int, "2")])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="of systems with fork")
def test_threads_in_a_forked_process() -> None:
    assert in_two_threads() == [1, 2]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(in_two_threads).get(timeout=60) == [1, 2]
