"""An update on images laid out for convolutions is that of the reference path."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers import ACTION_SPACES, noise_envs
from sb3_ppo_variants import PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped

IMAGE = spaces.Box(0, 255, (36, 36, 2), np.uint8)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "clip": (PPOClip, {}),
    "adaptive": (PPOAdaptiveKL, {"kl_coef": 3.0}),
    "fixed": (PPOFixedKL, {"kl_coef": 3.0, "clip_range": 0.1}),
    "unclipped": (PPOUnclipped, {}),
    "all terms": (PPOClip, {"clip_range_vf": 0.1, "ent_coef": 0.02, "max_grad_norm": 0.05}),
    "target_kl": (PPOClip, {"target_kl": 1e-6}),
    "separate features": (PPOClip, {"policy_kwargs": {"share_features_extractor": False, "net_arch": [16]}}),
    "gSDE": (PPOClip, {"use_sde": True}),
}


def updated(cls: Any, fast: bool, action_space: spaces.Space, n_updates: int = 1, **arguments: Any) -> Any:
    env = noise_envs(action_space, IMAGE, n_envs=3)
    model = cls(
        "CnnPolicy", env, n_steps=20, batch_size=25, n_epochs=2, learning_rate=1e-4, seed=1, fast=fast, **arguments
    )
    _, callback = model._setup_learn(60)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 20)
    for _ in range(n_updates):
        np.random.seed(3)
        model.train()
    return model


def assert_same(reference: Any, fast: Any) -> None:
    assert fast._n_updates == reference._n_updates
    for wanted, got in zip(reference.policy.parameters(), fast.policy.parameters(), strict=True):
        th.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    theirs, ours = (model.policy.optimizer.state_dict() for model in (reference, fast))
    assert ours["param_groups"] == theirs["param_groups"]
    for index, wanted in theirs["state"].items():
        th.testing.assert_close(ours["state"][index], wanted, rtol=1e-3, atol=1e-6)
    for key, value in reference.logger.name_to_value.items():
        assert fast.logger.name_to_value[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", CASES)
def test_objectives(name: str) -> None:
    cls, arguments = CASES[name]
    assert_same(*(updated(cls, fast, ACTION_SPACES["Box"], **arguments) for fast in (False, True)))


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_action_spaces_and_a_buffer_read_twice(space: str) -> None:
    assert_same(*(updated(PPOFixedKL, fast, ACTION_SPACES[space], n_updates=2) for fast in (False, True)))


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_filters_are_laid_out_for_convolutions() -> None:
    model = updated(PPOClip, True, ACTION_SPACES["Box"])
    filters = [module.weight for module in model.policy.modules() if isinstance(module, th.nn.Conv2d)]
    assert len(filters) == 3
    assert all(weight.is_contiguous(memory_format=th.channels_last) for weight in filters)
