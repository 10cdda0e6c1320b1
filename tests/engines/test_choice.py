"""The choice of the path, and how it is reported."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import DiagGaussianDistribution, TanhBijector
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN

from helpers import BOX, IMAGE, VARIANTS, VECTOR, assert_same_weights, noise_envs, save, small
from sb3_ppo_variants import (
    ArgumentError,
    KLAdaptive,
    Objective,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    PPOUnclipped,
    register_kl,
)
from sb3_ppo_variants.engines import native, recognised
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.objectives import EWMA, Clipped, KLPenalized

DICT = spaces.Dict({"image": IMAGE})


def make(cls: Any = PPOClip, policy: Any = "MlpPolicy", observation_space: Any = VECTOR, **arguments: Any) -> Any:
    return small(cls, noise_envs(BOX, observation_space), policy, **arguments)


class Buffer(RolloutBuffer):
    pass


class Extractor(FlattenExtractor):
    pass


class Cnn(NatureCNN):
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


class Renamed(ActorCriticPolicy):
    """A policy that differs from ActorCriticPolicy only in its name."""


CNN = {"policy": "CnnPolicy", "observation_space": IMAGE}
UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "dictionaries": ({"policy": "MultiInputPolicy", "observation_space": DICT}, "features come from a NatureCNN"),
    "flat images": ({"observation_space": IMAGE}, "observations are images"),
    "squashing": ({"policy": Squashed, "use_sde": True}, "actions are squashed by a Sigmoid"),
    "optimizer of a CNN": ({**CNN, "policy_kwargs": {"optimizer_class": th.optim.SGD}}, "the optimizer is SGD"),
    "unscaled images": ({**CNN, "policy_kwargs": {"normalize_images": False}}, "images are not scaled"),
    "another CNN": ({**CNN, "policy_kwargs": {"features_extractor_class": Cnn}}, "features come from a Cnn"),
    "buffer": ({"rollout_buffer_class": Buffer}, "rollout buffer is a Buffer"),
    "features": ({"policy_kwargs": {"features_extractor_class": Extractor}}, "features come from a Extractor"),
    "policy": ({"policy": Forward}, "Forward overrides forward"),
    "call": ({"policy": Called}, "Called overrides __call__"),
    "activation": ({"policy_kwargs": {"activation_fn": th.nn.ELU}}, "the activation is ELU"),
    "optimizer": ({"policy_kwargs": {"optimizer_class": th.optim.SGD}}, "the optimizer is SGD"),
    "weight decay": ({"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.1}}}, "weight_decay is 0.1"),
    "amsgrad": ({"policy_kwargs": {"optimizer_kwargs": {"amsgrad": True}}}, "amsgrad is True"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_takes_the_reference_path(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, reason = UNSUPPORTED[name]
    model = make(verbose=1, **arguments)
    capsys.readouterr()
    model.learn(64)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Training on")]
    assert len(said) == 1 and said[0].startswith("Training on the reference path: ") and reason in said[0]
    with pytest.raises(ArgumentError, match=rf"^fast=True is not possible, because .*{reason}"):
        make(fast=True, **arguments)
    make(fast=False, **arguments)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        CNN,
        {"use_sde": True},
        {"observation_space": spaces.Discrete(3)},
        {"cls": PPOAdaptiveKL, "learning_rate": KLAdaptive()},
        {"cls": PPOCustom, "objective": EWMA(Clipped(0.2))},
    ],
    ids=str,
)
def test_pytorchs_default_device_does_not_matter(arguments: Any, fast: bool) -> None:
    """Tensors on the device "meta" have no numbers, so that using a single one of them fails. SB3 uses none."""
    expected, model = make(fast=fast, **arguments).learn(128), make(fast=fast, **arguments)
    with th.device("meta"):
        model.learn(128)
    assert_same_weights(model, expected)


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
CHANGES = ["frozen", *HOOKS, "layer", "biasless", "mixed", "parameter", "groups", "option"]


def change(model: Any, how: str) -> str:
    policy = model.policy
    if how == "frozen":
        policy.value_net.bias.requires_grad_(False)
        return "some parameters are frozen"
    if how in HOOKS:
        owner, register = HOOKS[how]
        getattr(policy.get_parameter(owner) if "." in owner else getattr(policy, owner), register)(lambda *_: None)
        return "hooks"
    if how == "layer":
        policy.action_net = th.nn.Sequential(policy.action_net)
        return "the networks have a Sequential"
    if how == "biasless":
        policy.action_net = th.nn.Linear(64, 2, bias=False)
        return "where a layer with weights and biases is expected"
    if how == "mixed":
        policy.mlp_extractor.policy_net[1] = th.nn.ReLU()
        return "the activation is ReLU, Tanh"
    if how == "parameter":
        policy.extra = th.nn.Parameter(th.zeros(1))
        return "parameters outside its layers"
    if how == "option":  # A later version of PyTorch may add an option.
        policy.optimizer.param_groups[0]["momentum_decay"] = 0.004
        return "Adam's momentum_decay is 0.004"
    policy.optimizer = th.optim.Adam([{"params": [p]} for p in policy.parameters()])
    return "several groups"


@pytest.mark.parametrize("how", CHANGES)
def test_changes_after_construction_are_seen(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(verbose=1)
    reason = change(model, how)
    model.learn(32)
    assert reason in capsys.readouterr().out
    model.fast = True
    with pytest.raises(ArgumentError, match=rf"^fast=True is not possible, because .*{reason}"):
        model.learn(32)


def test_a_change_between_a_rollout_and_its_update_is_seen() -> None:
    class Freezes(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            policy: Any = self.model.policy
            policy.value_net.weight.requires_grad_(False)

    model = make()
    before = deepcopy(model.policy.state_dict())
    model.learn(32, callback=Freezes())
    assert th.equal(model.policy.value_net.weight, before["value_net.weight"])
    assert not th.equal(model.policy.value_net.bias, before["value_net.bias"])


def test_the_objective_of_a_subclass_is_that_of_both_paths() -> None:
    class Held(PPOUnclipped):
        def _objective(self) -> Any:
            return KLPenalized(kl_coef=1e4)

    def kl(cls: Any, fast: bool) -> float:
        env = noise_envs(BOX)
        model = cls("MlpPolicy", env, 3e-3, n_steps=64, batch_size=32, seed=0, device="cpu", fast=fast)
        return model.learn(128).logger.name_to_value["train/kl"]

    for fast in (False, True):
        assert kl(Held, fast) < 0.01 * kl(PPOUnclipped, fast)


def test_a_kl_of_the_users_own_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_ppo_variants.kl._REGISTRY", {})
    register_kl(DiagGaussianDistribution, lambda d: (d.distribution.mean,), lambda old, new: (old[0] * 0 + 7.0)[:, 0])
    assert make().learn(32).logger.name_to_value["train/kl"] == pytest.approx(7.0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("policy", ["MlpPolicy", Renamed])
def test_the_fast_path_is_the_default(policy: Any, variant: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make(variant, policy, verbose=1).learn(32)
    assert "Training on the fast path" in capsys.readouterr().out
    make(variant, policy, verbose=1, fast=False).learn(32)
    assert "Training on the reference path: fast=False" in capsys.readouterr().out
    make(variant, policy, fast=True).learn(32)
    assert "Training on" not in capsys.readouterr().out


@pytest.mark.parametrize("value", [1, "yes", None])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^fast=.* is not allowed; allowed: True, False or 'auto'"):
        make(fast=value)


def test_the_choice_is_saved_and_may_be_changed(tmp_path: Path) -> None:
    make(fast=False).save(tmp_path / "model")
    assert PPOClip.load(tmp_path / "model").fast is False
    assert PPOClip.load(tmp_path / "model", fast=True).fast is True


def test_a_model_of_sb3_goes_on_on_the_fast_path_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    file = save(make(PPO, n_epochs=1).learn(64))
    ours: Any = PPOClip.load(file, env=noise_envs(BOX), verbose=1)
    ours.learn(32, reset_num_timesteps=False)
    assert "Training on the fast path" in capsys.readouterr().out
    back = save(ours)
    theirs: Any = PPO.load(back, env=noise_envs(BOX))
    for key, state in ours.policy.optimizer.state_dict()["state"].items():
        th.testing.assert_close(theirs.policy.optimizer.state_dict()["state"][key], state)
        assert state["step"] == 2 * 2 + 2
    theirs.learn(32, reset_num_timesteps=False)
    assert theirs.num_timesteps == 64 + 32 + 32


NATIVE = "Training on the fast path: the native library computes the networks"


class Mine(Objective):
    """A user's objective."""

    def loss(self, batch: Any) -> th.Tensor:
        return -(batch.ratio * batch.advantages).mean()


def said(model: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the line that says which path a model uses."""
    capsys.readouterr()
    model.learn(32)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Training on")]
    return line


@pytest.mark.usefixtures("natively")
def test_it_is_said_that_the_library_computes(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(small(verbose=1), capsys) == NATIVE


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize(
    ("cls", "arguments"), [(PPOClip, {"use_sde": True}), (PPOCustom, {"objective": Mine()})], ids=["gSDE", "own"]
)
def test_it_computes_gsde_and_objectives_of_users(
    cls: Any, arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(small(cls, verbose=1, **arguments), capsys) == NATIVE


def test_without_the_library_pytorch_computes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognised, "library", lambda: None)
    assert said(small(verbose=1), capsys) == "Training on the reference path: " + (
        f"there is no native library in {Path(native.__file__).parent} (install a C++ compiler and, in a clone of "
        "sb3_ppo_variants, run: pip install --no-deps -e .)"
    )


@pytest.mark.usefixtures("natively")
def test_pytorch_computes_parameters_that_lie_in_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    model = small(verbose=1)
    weight = model.policy.action_net.weight
    weight.data = weight.data.t().contiguous().t()
    assert said(model, capsys) == "Training on the reference path: " + "some parameters are not contiguous in memory"


@pytest.mark.usefixtures("natively")
def test_pytorch_computes_other_types_of_numbers() -> None:
    model = small(verbose=1)
    model.policy.half()
    assert choose(model._plan(), fast="auto").why == "the native library does not compute in torch.float16"
