"""An update on images that are laid out for convolutions matches the reference path."""

import io
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import MASKED_SPACES, masked_envs
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticCnnPolicy

from helpers import ACTION_SPACES, BOX, collect, noise_envs
from sb3_ppo_variants import (
    ExactKL,
    Huber,
    KLAdaptive,
    NonFiniteError,
    PPOAdaptiveKL,
    PPOClip,
    PPOFixedKL,
    PPOUnclipped,
)
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.engines.images import Images
from sb3_ppo_variants.engines.native.convolutions import FirstLayers

IMAGE = spaces.Box(0, 255, (36, 36, 2), np.uint8)
NUMBERS = spaces.Box(0, 1, (2, 36, 36), np.float32)
NORMALIZED: dict[str, Any] = {"normalize_images": False, "features_extractor_kwargs": {"normalized_image": True}}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "clip": (PPOClip, {}),
    "adaptive": (PPOAdaptiveKL, {"kl_coef": 3.0}),
    "fixed": (PPOFixedKL, {"kl_coef": 3.0, "clip_range": 0.1}),
    "unclipped": (PPOUnclipped, {}),
    "all terms": (PPOClip, {"clip_range_vf": 0.1, "ent_coef": 0.02, "max_grad_norm": 0.05}),
    "advantages over the rollout": (PPOClip, {"normalize_advantage": "rollout", "max_grad_norm": None}),
    "target_kl": (PPOClip, {"target_kl": 1e-6}),
    "stop and value loss": (PPOClip, {"stop": ExactKL(1e-5, ends="epoch"), "value_loss": Huber(0.1)}),
    "adaptive rate": (PPOClip, {"learning_rate": KLAdaptive(desired_kl=1e-4, every="minibatch")}),
    "separate features": (PPOClip, {"policy_kwargs": {"share_features_extractor": False, "net_arch": [16]}}),
    "gSDE": (PPOClip, {"use_sde": True}),
}


@pytest.fixture(params=["natively", "with PyTorch"], autouse=True)
def _convolved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with convolutions by the native library and by PyTorch."""
    if request.param == "natively":
        request.getfixturevalue("natively")
    else:
        monkeypatch.setattr(FirstLayers, "find", lambda _: None)


def updated(
    cls: Any,
    fast: bool,
    action_space: spaces.Space,
    n_updates: int = 1,
    images: spaces.Box = IMAGE,
    masked: bool = False,
    **arguments: Any,
) -> Any:
    env = (masked_envs if masked else noise_envs)(action_space, images, n_envs=3)
    arguments = {"n_steps": 20, "batch_size": 25, "n_epochs": 2, "learning_rate": 1e-4, "seed": 1, **arguments}
    model = cls("MaskableCnnPolicy" if masked else "CnnPolicy", env, fast=fast, **arguments)
    collect(model)
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


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", CASES)
def test_objectives(name: str) -> None:
    cls, arguments = CASES[name]
    assert_same(*(updated(cls, fast, BOX, **arguments) for fast in (False, True)))


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_action_spaces_and_a_buffer_read_twice(space: str) -> None:
    assert_same(*(updated(PPOFixedKL, fast, ACTION_SPACES[space], n_updates=2) for fast in (False, True)))


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"gSDE"}))
def test_objectives_with_masked_actions(name: str) -> None:
    cls, arguments = CASES[name]
    space = MASKED_SPACES["MultiDiscrete"]
    assert_same(*(updated(cls, fast, space, masked=True, **arguments) for fast in (False, True)))


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("space", MASKED_SPACES)
def test_masked_action_spaces_and_a_buffer_read_twice(space: str) -> None:
    both = (updated(PPOFixedKL, fast, MASKED_SPACES[space], 2, masked=True) for fast in (False, True))
    assert_same(*both)


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_images_that_are_numbers_already() -> None:
    reference, fast = (updated(PPOClip, fast, BOX, images=NUMBERS, policy_kwargs=NORMALIZED) for fast in (False, True))
    assert_same(reference, fast)


def test_bytes_that_are_not_scaled_take_the_reference_path() -> None:
    env = noise_envs(BOX, IMAGE)
    model = PPOClip("CnnPolicy", env, n_steps=8, batch_size=16, policy_kwargs={"normalize_images": False})
    assert choose(model._plan(), "auto").engine.path == "reference"
    assert Images().obstacle(model._plan()) == "images are not scaled to [0, 1]"


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("fails", [False, True])
def test_the_policy_scales_images_again(fails: bool) -> None:
    model = updated(PPOClip, True, BOX)
    if fails:
        model.rollout_buffer.returns[:] = np.nan
        with pytest.raises(NonFiniteError):
            model.train()
    assert model.policy.normalize_images


class Strides(BaseCallback):
    """Records the memory layout of the filters during a rollout."""

    def _on_step(self) -> bool:
        self.seen = [weight.stride() for weight in filters(self.model.policy)]
        return True


def filters(policy: Any) -> list[th.Tensor]:
    return [module.weight for module in policy.modules() if isinstance(module, th.nn.Conv2d)]


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_filters_lie_for_convolutions_only_while_they_are_used() -> None:
    model, callback = updated(PPOClip, True, BOX), Strides()
    model.learn(60, callback=callback)
    wanted = [weight.contiguous(memory_format=th.channels_last).stride() for weight in filters(model.policy)]
    assert callback.seen == wanted and len(wanted) == 3
    for weight in filters(model.policy):
        state = model.policy.optimizer.state[weight]
        assert all(tensor.is_contiguous() for tensor in (weight, state["exp_avg"], state["exp_avg_sq"]))


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_parameters_stay_where_they_are_in_memory() -> None:
    """Another process may share the memory."""
    model = updated(PPOClip, True, BOX)
    parameters = [*model.policy.parameters()]
    shared, before = [each.data for each in parameters], [each.detach().clone() for each in parameters]
    model.learn(60)
    for place, parameter, earlier in zip(shared, parameters, before, strict=True):
        assert place.data_ptr() == parameter.data_ptr()
        assert th.equal(place, parameter) and not th.equal(place, earlier)


class Counting(th.nn.Module):
    """Has large layers and counts its calls, as a module of a user may."""

    latent_dim_pi = latent_dim_vf = 256

    def __init__(self, features: int):
        super().__init__()
        self.layer, self.calls = th.nn.Linear(features, 256), 0

    def forward(self, features: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: th.Tensor) -> th.Tensor:
        self.calls += 1
        return self.layer(features)

    def forward_critic(self, features: th.Tensor) -> th.Tensor:
        return self.layer(features)


class CountingPolicy(ActorCriticCnnPolicy):
    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = Counting(self.features_dim)  # type: ignore[assignment]


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_modules_of_a_user_keep_their_attributes() -> None:
    env = noise_envs(BOX, IMAGE)
    model: Any = PPOClip(CountingPolicy, env, n_steps=20, batch_size=25, n_epochs=2, fast=True)
    model.learn(40)
    # A call for each step and minibatch of a rollout and its update, at least.
    assert model.policy.mlp_extractor.calls >= 20 + 4


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("cls", [PPO, PPOClip])
def test_moments_of_the_reference_path_go_with_their_filters(cls: Any) -> None:
    def continued(fast: bool) -> Any:
        model: Any = PPOClip.load(io.BytesIO(saved), env=noise_envs(BOX, IMAGE, n_envs=3), fast=False)
        model.set_random_seed(1)
        # Both use the same rollout, because convolutions on the other path round differently.
        collect(model)
        model.fast = fast
        np.random.seed(3)
        model.train()
        return model

    file, reference = io.BytesIO(), {} if cls is PPO else {"fast": False}
    env = noise_envs(BOX, IMAGE, n_envs=3)
    cls("CnnPolicy", env, n_steps=20, batch_size=25, n_epochs=2, seed=1, **reference).learn(60).save(file)
    saved = file.getvalue()
    assert_same(*(continued(fast) for fast in (False, True)))


FRAMES = spaces.Box(0, 255, (4, 45, 40), np.uint8)


def test_another_network_in_place_of_the_convolutions() -> None:
    class Pooled(th.nn.Module):
        def forward(self, images: th.Tensor) -> th.Tensor:
            return images.mean((2, 3)).repeat(1, 128)

    model: Any = PPOClip("CnnPolicy", noise_envs(BOX, FRAMES), n_steps=8, batch_size=16)
    model.policy.features_extractor.cnn = Pooled()
    model.policy.features_extractor.linear = th.nn.Identity()
    model.policy.optimizer = th.optim.Adam(model.policy.parameters())
    assert choose(model._plan(), "auto").engine.path == "reference"
    model.learn(16)


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_a_batch_larger_than_the_rollout() -> None:
    env = noise_envs(BOX, FRAMES)
    PPOClip("CnnPolicy", env, n_steps=8, batch_size=10**12, n_epochs=1, fast=True).learn(16)


def test_hooks_of_the_first_layer_are_called() -> None:
    model: Any = PPOClip("CnnPolicy", noise_envs(BOX, FRAMES), n_steps=8, batch_size=16)
    seen: list[Any] = []
    model.policy.features_extractor.cnn[0].register_forward_hook(lambda *arguments: seen.append(arguments))
    assert FirstLayers.find(model.policy) is None
    model.learn(16)
    assert seen


@pytest.mark.parametrize("name", ["Box", "Discrete"])
def test_rollouts_with_the_first_layer_apart(name: str) -> None:
    def collected(fast: bool) -> Any:
        env = noise_envs(ACTION_SPACES[name], FRAMES)
        model: Any = PPOClip("CnnPolicy", env, n_steps=16, batch_size=16, seed=1, fast=fast)
        collect(model)
        assert model.policy.normalize_images and "forward" not in vars(model.policy.features_extractor.cnn)
        return model.rollout_buffer

    reference, fast = collected(False), collected(True)
    assert np.array_equal(fast.observations, reference.observations)
    for column in ("actions", "values", "log_probs", "advantages", "returns"):
        np.testing.assert_allclose(getattr(fast, column), getattr(reference, column), rtol=1e-4, atol=1e-5)


def test_the_policy_itself_stays_unchanged_while_its_first_layer_is_computed_apart() -> None:
    """An interrupt at any moment must not leave it changed."""
    model: Any = PPOClip("CnnPolicy", noise_envs(BOX, FRAMES), n_steps=8, batch_size=16)
    extractor, seen = model.policy.features_extractor, []
    before = [dict(vars(module)) for module in (model.policy, extractor, extractor.cnn)]

    def look(*_: Any) -> None:
        now = [vars(module) for module in (model.policy, extractor, extractor.cnn)]
        seen.append(
            [{name for name in {**a, **b} if a.get(name) is not b.get(name)} for a, b in zip(before, now, strict=True)]
        )

    extractor.linear.register_forward_hook(look)
    model.learn(16)
    assert len(seen) > 8
    assert all(changed <= {"training"} for each in seen for changed in each)
