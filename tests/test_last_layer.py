"""The linear layer of SB3's convolutional network is the same when it is computed as a convolution."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from helpers import ACTION_SPACES, noise_envs
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.backends.last_layer import Convolution, convolved

FRAMES = spaces.Box(0, 255, (1, 52, 60), np.uint8)  # The layer has 3 * 4 * 64 inputs.


@pytest.fixture
def convolutions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the filters that replace the layer, for each call."""
    seen: list[tuple[int, ...]] = []
    convolve: Callable[..., th.Tensor] = functional.conv2d

    def noted(images: th.Tensor, weight: th.Tensor, *others: Any) -> th.Tensor:
        if weight.shape[-1] == 1:  # Not the network's own filters.
            seen.append(tuple(weight.shape))
        return convolve(images, weight, *others)

    monkeypatch.setattr(functional, "conv2d", noted)
    monkeypatch.setattr(th.backends.mkl, "is_available", lambda: True)
    return seen


def created(**arguments: Any) -> Any:
    env = noise_envs(ACTION_SPACES["Discrete"], FRAMES)
    return PPOClip("CnnPolicy", env, **{"n_steps": 32, "batch_size": 32, "n_epochs": 2, "seed": 1, **arguments})


@pytest.mark.parametrize("strided", [False, True])
def test_the_layer_and_its_gradients_are_the_same(strided: bool) -> None:
    th.manual_seed(0)
    layer, rows = nn.Linear(192, 5), th.randn(40, 192, requires_grad=True)
    if strided:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    out_gradient = th.randn(40, 5)
    wanted = functional.linear(rows, layer.weight, layer.bias)
    got = Convolution(layer)(rows)
    th.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    inputs = [rows, layer.weight, layer.bias]
    th.testing.assert_close(
        th.autograd.grad(got, inputs, out_gradient),
        th.autograd.grad(wanted, inputs, out_gradient),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("shared", [True, False])
def test_updates_match_the_reference(shared: bool, convolutions: list[tuple[int, ...]]) -> None:
    reference, fast = (
        created(fast=fast, learning_rate=1e-4, policy_kwargs={"share_features_extractor": shared})
        for fast in (False, True)
    )
    for model in (reference, fast):
        _, callback = model._setup_learn(64)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, 32)
    fast.rollout_buffer = reference.rollout_buffer
    for model in (reference, fast):
        np.random.seed(3)
        model.train()
    for wanted, got in zip(reference.policy.parameters(), fast.policy.parameters(), strict=True):
        th.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    assert set(convolutions) == {(512, 64, 12, 1)}


def test_few_rows_are_multiplied(convolutions: list[tuple[int, ...]]) -> None:
    layer, rows = nn.Linear(64, 3), th.randn(31, 64)
    th.testing.assert_close(Convolution(layer)(rows), layer(rows), rtol=0, atol=0)
    assert not convolutions


def test_layers_that_stay_as_they_are(convolutions: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    policy = created().policy
    images = th.zeros(32, *FRAMES.shape)
    policy.features_extractor.linear[0] = nn.utils.parametrizations.weight_norm(policy.features_extractor.linear[0])
    convolved(policy).predict_values(images)
    assert not convolutions  # A parametrized layer.
    policy = created().policy
    policy.features_extractor.linear[0].forward = lambda rows: th.zeros(len(rows), 512)
    convolved(policy).predict_values(images)
    assert not convolutions  # A layer with a forward of its own.
    policy = created().policy
    monkeypatch.setattr(th.backends.mkl, "is_available", lambda: False)
    convolved(policy).predict_values(images)
    assert not convolutions  # Matrix products without MKL.


def test_hooks_of_the_layer_are_called(convolutions: list[tuple[int, ...]]) -> None:
    model, seen = created(), []
    model.policy.features_extractor.linear[0].register_forward_hook(lambda *arguments: seen.append(arguments))
    model.learn(64)
    # 32 steps, the value after the last one, two epochs of two minibatches, and the KL of 64 rows.
    assert len(seen) >= 32 + 1 + 4 + 1
    assert len(convolutions) >= 4
    assert "forward" not in vars(model.policy.features_extractor.linear[0])
