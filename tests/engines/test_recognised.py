"""What the fast paths would compute differently takes the reference path, even if it changes after construction."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, FlattenExtractor
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from helpers import ACTION_SPACES, BOX, IMAGE, noise_envs, small
from sb3_ppo_variants.engines.choice import choose

PARTS: dict[str, spaces.Space] = {key: spaces.Box(-1, 1, (2,), np.float32) for key in "ab"}


def why(model: Any) -> str:
    """Return the reason for the path that the next rollout would take."""
    chosen = choose(model._plan(), "auto")
    return f"{chosen.engine.path}: {chosen.why}"


def optimizer_anew(policy: Any) -> None:
    policy.optimizer = th.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)


class Doubled(nn.Sequential):
    def forward(self, inputs: th.Tensor) -> th.Tensor:
        return 2 * super().forward(inputs)


def one_deviation(policy: Any) -> None:
    policy.log_std = nn.Parameter(th.zeros(1))
    optimizer_anew(policy)


def fixed_deviation(policy: Any) -> None:
    del policy.log_std
    policy.register_buffer("log_std", th.zeros(2))
    optimizer_anew(policy)


def more_values(policy: Any) -> None:
    policy.value_net = nn.Linear(64, 2)
    optimizer_anew(policy)


def narrower(policy: Any) -> None:
    policy.value_net = nn.Linear(32, 1)
    optimizer_anew(policy)


def shared(policy: Any) -> None:
    policy.mlp_extractor.value_net = policy.mlp_extractor.policy_net
    optimizer_anew(policy)


def doubled(policy: Any) -> None:
    policy.mlp_extractor.policy_net = Doubled(*policy.mlp_extractor.policy_net)


def own_forward(policy: Any) -> None:
    policy.action_net.forward = policy.action_net.forward


class Scaled(FlattenExtractor):
    def forward(self, observations: th.Tensor) -> th.Tensor:
        return 100 * super().forward(observations)


def other_features(policy: Any) -> None:
    policy.features_extractor = Scaled(policy.observation_space)


def scaled_features(policy: Any) -> None:
    policy.features_extractor.flatten = nn.Sequential(nn.Flatten(), nn.Hardsigmoid())


CHANGES: dict[Callable[[Any], None], str] = {
    one_deviation: "log_std has the shape (1,)",
    fixed_deviation: "log_std is not a parameter",
    more_values: "the value network has 2 outputs",
    narrower: "a layer has weights of shape (1, 32) for 64 inputs",
    shared: "layers share parameters",
    doubled: "hidden layers are in a Doubled",
    own_forward: "a Linear has its own forward",
    other_features: "features come from a Scaled",
    scaled_features: "features come from a Sequential",
    th.nn.Module.bfloat16: "the native library does not compute in torch.bfloat16",
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_policies(change: Callable[[Any], None]) -> None:
    model = small()
    assert why(model).startswith("fast: ")
    change(model.policy)
    assert why(model) == f"reference: {CHANGES[change]}"


@pytest.mark.parametrize("change", [one_deviation, fixed_deviation, shared, doubled, other_features])
def test_changed_policies_train_on_the_reference_path(change: Callable[[Any], None]) -> None:
    model = small()
    change(model.policy)
    before = model.policy.action_net.weight.clone()
    model.learn(32)
    assert not th.equal(model.policy.action_net.weight, before)


class Linear(BaseFeaturesExtractor):
    def __init__(self, space: spaces.Space):
        super().__init__(space, features_dim=512)
        self.linear = nn.Linear(36 * 36, 512)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.linear(observations.flatten(1))


def test_other_features_of_images() -> None:
    model = small(policy="CnnPolicy", env=noise_envs(BOX, IMAGE))
    model.policy.features_extractor = Linear(model.policy.observation_space)
    optimizer_anew(model.policy)
    assert why(model) == "reference: features come from a Linear"
    before = model.policy.features_extractor.linear.weight.clone()
    model.learn(32)
    assert not th.equal(model.policy.features_extractor.linear.weight, before)


@pytest.mark.parametrize("space", ACTION_SPACES.values())
@pytest.mark.parametrize("difference", [-1, 1])
def test_another_number_of_outputs(space: spaces.Space, difference: int) -> None:
    model = small(env=noise_envs(space))
    outputs = len(model.policy.action_net.bias)
    model.policy.action_net = nn.Linear(64, outputs + difference)
    model.policy.log_std = nn.Parameter(th.zeros(outputs + difference))
    optimizer_anew(model.policy)
    assert why(model) == f"reference: the policy network has {outputs + difference} outputs instead of {outputs}"


def test_a_critic_that_sees_something_else() -> None:
    env = noise_envs(BOX, spaces.Dict(PARTS))
    model = small(env=env, policy="MultiInputPolicy", policy_kwargs={"share_features_extractor": False})
    assert why(model).startswith("fast: ")
    model.policy.vf_features_extractor = CombinedExtractor(spaces.Dict({"b": PARTS["b"]}))
    assert why(model) == "reference: a layer has weights of shape (64, 4) for 2 inputs"


def test_a_scheduler_of_the_learning_rate_is_no_obstacle() -> None:
    model = small()
    th.optim.lr_scheduler.LambdaLR(model.policy.optimizer, lambda epoch: 1.0)
    assert why(model).startswith("fast: ")


def test_hooks_that_no_computation_calls() -> None:
    model = small()
    model.policy.register_state_dict_post_hook(lambda *_: None)
    model.policy.register_load_state_dict_post_hook(lambda *_: None)
    model.policy.optimizer.register_state_dict_post_hook(lambda *_: None)
    model.policy.value_net.register_full_backward_hook(lambda *_: None).remove()
    assert why(model).startswith("fast: ")


@pytest.mark.parametrize(
    ("register", "what"),
    [
        (register_module_forward_hook, "the policy's modules"),
        (register_optimizer_step_pre_hook, "all optimizers"),
        (register_optimizer_step_post_hook, "all optimizers"),
    ],
)
def test_global_hooks(register: Callable[[Any], RemovableHandle], what: str) -> None:
    handle = register(lambda *_: None)
    try:
        assert why(small()) == f"reference: {what} have hooks"
    finally:
        handle.remove()


def test_parameters_with_different_numbers_of_steps() -> None:
    model = small()
    model.policy.value_net.requires_grad_(False)
    model.learn(32)
    model.policy.value_net.requires_grad_(True)
    assert why(model) == "reference: Adam has made more steps with some parameters than with others"
