"""The convolutions of images are computed by PyTorch if a user's own code takes part in them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch.nn.modules.module import register_module_forward_hook

from helpers import BOX, noise_envs
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.engines.native.convolutions import FirstLayers

pytestmark = pytest.mark.usefixtures("natively")

FRAMES = spaces.Box(0, 255, (4, 45, 40), np.uint8)


@pytest.fixture
def policy() -> Any:
    """Create a policy whose convolutions the library would compute."""
    policy = PPOClip("CnnPolicy", noise_envs(BOX, FRAMES), n_steps=8, batch_size=16).policy
    layers = FirstLayers.find(policy)
    assert layers is not None and len(layers.modules) == 6
    return policy


def own_forward_of_the_features(policy: Any) -> None:
    policy.features_extractor.forward = policy.features_extractor.forward


def own_forward_of_the_network(policy: Any) -> None:
    policy.features_extractor.cnn.forward = policy.features_extractor.cnn.forward


def own_forward_of_the_layer(policy: Any) -> None:
    policy.features_extractor.cnn[0].forward = policy.features_extractor.cnn[0].forward


def hooked(policy: Any) -> None:
    policy.features_extractor.cnn[0].register_forward_hook(lambda *_: None)


def other_features_of_the_actor(policy: Any) -> None:
    policy.pi_features_extractor = deepcopy(policy.features_extractor)


def other_features_of_the_critic(policy: Any) -> None:
    policy.vf_features_extractor = deepcopy(policy.features_extractor)


CHANGES = [
    own_forward_of_the_features,
    own_forward_of_the_network,
    own_forward_of_the_layer,
    hooked,
    other_features_of_the_actor,
    other_features_of_the_critic,
]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_policies(policy: Any, change: Callable[[Any], None]) -> None:
    change(policy)
    assert FirstLayers.find(policy) is None


def test_hooks_of_all_modules(policy: Any) -> None:
    handle = register_module_forward_hook(lambda *_: None)
    try:
        assert FirstLayers.find(policy) is None
    finally:
        handle.remove()
    assert FirstLayers.find(policy) is not None


def test_other_policies() -> None:
    separate = {"share_features_extractor": False}
    env = noise_envs(BOX, FRAMES)
    assert FirstLayers.find(PPOClip("CnnPolicy", env, n_steps=8, batch_size=16, policy_kwargs=separate).policy) is None
    numbers = noise_envs(BOX, spaces.Box(0, 1, (4, 45, 40), np.float32))
    plain = {"normalize_images": False}
    assert FirstLayers.find(PPOClip("CnnPolicy", numbers, n_steps=8, batch_size=16, policy_kwargs=plain).policy) is None
