"""What the fast engines would compute differently takes the reference path, also if it changes after construction."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import FOUR, masked_model
from gymnasium import spaces
from masked_envs import MULTI
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import DiagGaussianDistribution, TanhBijector
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from helpers import ACTION_SPACES, BOX, IMAGE, VECTOR, Passive, noise_envs, small
from sb3_ppo_variants import ArgumentError, register_kl
from sb3_ppo_variants.distributions import Beta, BetaDistribution, StateGaussianDistribution
from sb3_ppo_variants.engines import native, recognised
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.hybrid import HybridDistribution

pytestmark = pytest.mark.usefixtures("natively")
PARTS: dict[str, spaces.Space] = {key: spaces.Box(-1, 1, (2,), np.float32) for key in "ab"}


def path_of(model: Any) -> str:
    """Return the path that the next rollout would take, and the reason."""
    chosen = choose(model._plan(), "auto")
    return f"{chosen.engine.path}: {chosen.why}"


class Buffer(RolloutBuffer):
    pass


class Extractor(FlattenExtractor):
    pass


class Called(ActorCriticPolicy):
    """A policy with a ``__call__`` of its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Forward(ActorCriticPolicy):
    def forward(self, obs: th.Tensor, deterministic: bool = False) -> Any:
        return super().forward(obs, deterministic)


class Sigmoid(TanhBijector):
    pass


class Squashed(ActorCriticPolicy):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "squash_output": True})
        distribution: Any = self.action_dist
        distribution.bijector = Sigmoid()


class OwnBeta(BetaDistribution):
    """Might draw other actions."""


class MakesOwn(Beta):
    def make(self, action_dim: int) -> OwnBeta:
        return OwnBeta(action_dim)


MADE: dict[str, tuple[dict[str, Any], str]] = {
    "images in dictionaries": (
        {"policy": "MultiInputPolicy", "observation_space": spaces.Dict({"image": IMAGE})},
        "features come from a NatureCNN",
    ),
    "flat images": ({"observation_space": IMAGE}, "observations are images"),
    "squashing": ({"policy": Squashed, "use_sde": True}, "actions are squashed by a Sigmoid"),
    "buffer": ({"rollout_buffer_class": Buffer}, "the rollout buffer is a Buffer"),
    "features": ({"policy_kwargs": {"features_extractor_class": Extractor}}, "features come from a Extractor"),
    "forward": ({"policy": Forward}, "Forward overrides forward"),
    "call": ({"policy": Called}, "Called overrides __call__"),
    "activation": ({"policy_kwargs": {"activation_fn": nn.ELU}}, "the activation is ELU"),
    "optimizer": ({"policy_kwargs": {"optimizer_class": th.optim.SGD}}, "the optimizer is SGD, not Adam"),
    "weight decay": ({"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.1}}}, "Adam's weight_decay is 0.1"),
    "amsgrad": ({"policy_kwargs": {"optimizer_kwargs": {"amsgrad": True}}}, "Adam's amsgrad is True"),
    "distribution": ({"policy_kwargs": {"distribution": MakesOwn()}}, "actions are drawn from a OwnBeta"),
}


@pytest.mark.parametrize("name", MADE)
def test_models_that_take_the_reference_path(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, reason = MADE[name]
    observation_space = arguments.get("observation_space", VECTOR)
    arguments = {"policy": "MlpPolicy", "env": noise_envs(BOX, observation_space), **arguments}
    arguments.pop("observation_space", None)
    model = small(verbose=1, **arguments)
    capsys.readouterr()
    model.learn(32)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Training on")]
    assert said == [f"Training on the reference path: {reason}"]
    with pytest.raises(ArgumentError, match=rf"^fast=True is not possible, because {reason}"):
        small(fast=True, **arguments)


def optimizer_anew(policy: Any, **options: Any) -> None:
    policy.optimizer = th.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5, **options)


def with_own_parameter(policy: Any) -> None:
    policy.extra = nn.Parameter(th.zeros(1))


def in_groups(policy: Any) -> None:
    policy.optimizer = th.optim.Adam([{"params": [each]} for each in policy.parameters()])


def frozen(policy: Any) -> None:
    policy.value_net.bias.requires_grad_(False)


def without_bias(policy: Any) -> None:
    policy.action_net = nn.Linear(64, 2, bias=False)


def other_activation(policy: Any) -> None:
    policy.mlp_extractor.policy_net[1] = nn.ReLU()


def later_option(policy: Any) -> None:
    policy.optimizer.param_groups[0]["momentum_decay"] = 0.004


class Doubled(nn.Sequential):
    def forward(self, inputs: th.Tensor) -> th.Tensor:
        return 2 * super().forward(inputs)


def doubled(policy: Any) -> None:
    policy.mlp_extractor.policy_net = Doubled(*policy.mlp_extractor.policy_net)


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


def own_forward(policy: Any) -> None:
    policy.action_net.forward = policy.action_net.forward


def scaled_features(policy: Any) -> None:
    policy.features_extractor.flatten = nn.Sequential(nn.Flatten(), nn.Hardsigmoid())


def in_pieces(policy: Any) -> None:
    policy.action_net.weight.data = policy.action_net.weight.data.t().contiguous().t()


CHANGED: dict[Callable[[Any], None], str] = {
    with_own_parameter: "the policy has parameters outside its layers",
    in_groups: "the optimizer has several groups of parameters",
    frozen: "some parameters are frozen",
    without_bias: "the networks have a Linear where a Linear with a bias is expected",
    other_activation: "the activation is ReLU, Tanh",
    later_option: "Adam's momentum_decay is 0.004",
    doubled: "hidden layers are in a Doubled",
    one_deviation: "log_std has the shape (1,)",
    fixed_deviation: "log_std is not a parameter",
    more_values: "the value network has 2 outputs",
    narrower: "a layer has weights of shape (1, 32) for 64 inputs",
    shared: "layers share parameters",
    own_forward: "a Linear has its own forward",
    scaled_features: "features come from a Sequential",
    in_pieces: "some parameters are not contiguous in memory",
    nn.Module.bfloat16: "the native library does not compute in torch.bfloat16",
}


@pytest.mark.parametrize("change", CHANGED)
def test_changed_policies(change: Callable[[Any], None]) -> None:
    model = small()
    assert path_of(model) == "fast: the native library computes the networks"
    change(model.policy)
    assert path_of(model) == f"reference: {CHANGED[change]}"
    model.fast = True
    with pytest.raises(ArgumentError, match=r"^fast=True is not possible, because "):
        model.learn(32)


@pytest.mark.parametrize("change", [one_deviation, fixed_deviation, shared, doubled, scaled_features, frozen])
def test_changed_policies_train_on_the_reference_path(change: Callable[[Any], None]) -> None:
    model = small()
    change(model.policy)
    before = model.policy.action_net.weight.clone()
    model.learn(32)
    assert not th.equal(model.policy.action_net.weight, before)


# For each kind of hook, the object that it is registered on and the method that registers it.
HOOKS = {
    "after forward": ("value_net", "register_forward_hook"),
    "before forward": ("value_net", "register_forward_pre_hook"),
    "after backward": ("value_net", "register_full_backward_hook"),
    "before backward": ("value_net", "register_full_backward_pre_hook"),
    "gradient": ("value_net.weight", "register_hook"),
    "gradient added": ("value_net.weight", "register_post_accumulate_grad_hook"),
    "before a step": ("optimizer", "register_step_pre_hook"),
    "after a step": ("optimizer", "register_step_post_hook"),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks(name: str) -> None:
    model, (owner, register) = small(), HOOKS[name]
    policy = model.policy
    getattr(policy.get_parameter(owner) if "." in owner else getattr(policy, owner), register)(lambda *_: None)
    assert path_of(model).startswith("reference: ") and path_of(model).endswith(("has hooks", "have hooks"))


@pytest.mark.parametrize("register", [register_module_forward_hook, register_optimizer_step_pre_hook])
def test_hooks_of_all(register: Callable[[Any], Any]) -> None:
    handle = register(lambda *_: None)
    try:
        assert path_of(small()).endswith("have hooks")
    finally:
        handle.remove()


def test_what_no_computation_calls_is_no_obstacle() -> None:
    model = small()
    model.policy.register_state_dict_post_hook(lambda *_: None)
    model.policy.optimizer.register_state_dict_post_hook(lambda *_: None)
    model.policy.value_net.register_full_backward_hook(lambda *_: None).remove()
    th.optim.lr_scheduler.LambdaLR(model.policy.optimizer, lambda epoch: 1.0)
    assert path_of(model).startswith("fast: ")


@pytest.mark.parametrize("space", ACTION_SPACES.values())
@pytest.mark.parametrize("difference", [-1, 1])
def test_another_number_of_outputs(space: spaces.Space, difference: int) -> None:
    model = small(env=noise_envs(space))
    outputs = len(model.policy.action_net.bias)
    model.policy.action_net = nn.Linear(64, outputs + difference)
    model.policy.log_std = nn.Parameter(th.zeros(outputs + difference))
    optimizer_anew(model.policy)
    assert path_of(model) == f"reference: the policy network has {outputs + difference} outputs instead of {outputs}"


def test_a_critic_that_sees_something_else() -> None:
    env = noise_envs(BOX, spaces.Dict(PARTS))
    model = small(env=env, policy="MultiInputPolicy", policy_kwargs={"share_features_extractor": False})
    assert path_of(model).startswith("fast: ")
    model.policy.vf_features_extractor = CombinedExtractor(spaces.Dict({"b": PARTS["b"]}))
    assert path_of(model) == "reference: a layer has weights of shape (64, 4) for 2 inputs"


def test_parts_of_actions() -> None:
    model = small(env=noise_envs(FOUR))
    assert path_of(model).startswith("fast: ")
    model.policy.action_dist.parts[0] = StateGaussianDistribution(2)
    assert path_of(model) == "reference: a part of the actions is drawn from a StateGaussianDistribution"

    class Own(HybridDistribution):
        """Might draw other actions."""

    model.policy.action_dist.__class__ = Own
    assert path_of(model) == "reference: actions are drawn from a Own"


class Evaluates(MaskableActorCriticPolicy):
    def evaluate_actions(self, obs: Any, actions: Any, action_masks: Any = None) -> Any:
        return super().evaluate_actions(obs, actions, action_masks)


def test_masked_policies() -> None:
    assert path_of(masked_model(type(small()), MULTI)).startswith("fast: ")
    own = masked_model(type(small()), MULTI, Evaluates)
    assert path_of(own) == "reference: Evaluates overrides evaluate_actions"


def test_parameters_with_different_numbers_of_steps() -> None:
    model = small()
    model.policy.value_net.requires_grad_(False)
    model.learn(32)
    model.policy.value_net.requires_grad_(True)
    assert path_of(model) == "reference: Adam has made more steps with some parameters than with others"


def test_a_kl_of_the_users_own_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_ppo_variants.kl._REGISTRY", {})
    register_kl(DiagGaussianDistribution, lambda d: (d.distribution.mean,), lambda old, new: (old[0] * 0 + 7.0)[:, 0])
    assert small().learn(32).logger.name_to_value["train/kl"] == pytest.approx(7.0)


def test_without_the_library_pytorch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognised, "library", lambda: None)
    assert path_of(small()) == (
        f"reference: there is no native library in {Path(native.__file__).parent} (install a C++ compiler and, in a "
        "clone of sb3_ppo_variants, run: pip install --no-deps -e .)"
    )


def test_a_change_between_a_rollout_and_its_update_is_seen() -> None:
    class Freezes(Passive):
        def _on_rollout_end(self) -> None:
            policy: Any = self.model.policy
            policy.value_net.weight.requires_grad_(False)

    model = small()
    before = deepcopy(model.policy.state_dict())
    model.learn(32, callback=Freezes())
    assert th.equal(model.policy.value_net.weight, before["value_net.weight"])
    assert not th.equal(model.policy.value_net.bias, before["value_net.bias"])
