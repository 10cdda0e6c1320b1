"""The engine for images makes the same rollouts and updates as the reference."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import MASKED_SPACES, masked_envs
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from torch.nn import functional

from helpers import ACTION_SPACES, BOX, collect, noise_envs
from sb3_ppo_variants import ExactKL, Huber, KLAdaptive, PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, PPOUnclipped
from sb3_ppo_variants.engines import images as image_engine
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.objectives import EWMA, KLPenalized
from sb3_ppo_variants.rollout import in_rows

pytestmark = [
    pytest.mark.usefixtures("natively"),
    pytest.mark.filterwarnings("ignore:You have specified a mini-batch size"),
]
IMAGE = spaces.Box(0, 255, (36, 36, 2), np.uint8)
FRAMES = spaces.Box(0, 255, (4, 45, 60), np.uint8)
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
    "EWMA": (PPOCustom, {"objective": EWMA(KLPenalized(kl_coef=3.0))}),
    "another network": (PPOClip, {"policy_kwargs": {"net_arch": [16]}}),
    "gSDE": (PPOClip, {"use_sde": True}),
    **{name: (PPOFixedKL, {"action_space": space, "n_updates": 2}) for name, space in ACTION_SPACES.items()},
    **{
        f"masked {name}": (PPOFixedKL, {"action_space": space, "masked": True, "n_updates": 2})
        for name, space in MASKED_SPACES.items()
    },
    "masked, a stop": (PPOClip, {"action_space": MASKED_SPACES["MultiDiscrete"], "masked": True, "target_kl": 1e-6}),
}


def updated(
    cls: Any,
    fast: bool,
    action_space: spaces.Space = BOX,
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
    for column in ("actions", "values", "log_probs", "advantages", "returns"):
        buffers = reference.rollout_buffer, fast.rollout_buffer
        theirs, ours = (in_rows(buffer, getattr(buffer, column)) for buffer in buffers)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, err_msg=column)
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
@pytest.mark.parametrize("name", CASES)
def test_rollouts_and_updates(name: str) -> None:
    cls, arguments = CASES[name]
    assert_same(*(updated(cls, fast, **arguments) for fast in (False, True)))


def own_forward(policy: Any) -> None:
    policy.features_extractor.cnn.forward = policy.features_extractor.cnn.forward


def hooked(policy: Any) -> None:
    policy.features_extractor.cnn[0].register_forward_hook(lambda *_: None)


def other_network(policy: Any) -> None:
    policy.features_extractor.cnn = nn.AdaptiveMaxPool2d(1)
    policy.features_extractor.linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 512))
    policy.optimizer = th.optim.Adam(policy.parameters())


def weight_norm(policy: Any) -> None:
    nn.utils.spectral_norm(policy.features_extractor.linear[0])
    policy.optimizer = th.optim.Adam(policy.parameters())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (own_forward, "a Sequential has its own forward"),
        (hooked, "the policy's modules have hooks"),
        (other_network, "the layers are not those of SB3's NatureCNN"),
        (weight_norm, "the policy's modules have hooks"),
    ],
)
def test_what_is_not_recognised_takes_the_reference_path(change: Any, why: str) -> None:
    model: Any = PPOClip("CnnPolicy", noise_envs(BOX, FRAMES), n_steps=8, batch_size=16, fast="auto")
    change(model.policy)
    chosen = choose(model._plan(), "auto")
    assert chosen.engine.path == "reference" and chosen.why == why
    before = deepcopy(model.policy.state_dict())
    model.learn(16)
    assert not th.equal(model.policy.action_net.weight, before["action_net.weight"])


@pytest.mark.parametrize(
    ("image", "kwargs", "why"),
    [
        (IMAGE, {"normalize_images": False}, "images are not scaled to [0, 1]"),
        (IMAGE, {"share_features_extractor": False}, "actor and critic have different features"),
        (
            spaces.Box(0, 1, (2, 36, 36), np.float32),
            {"normalize_images": False, "features_extractor_kwargs": {"normalized_image": True}},
            "images are float32, not bytes",
        ),
    ],
)
def test_other_images_and_features_take_the_reference_path(image: Any, kwargs: dict[str, Any], why: str) -> None:
    model: Any = PPOClip("CnnPolicy", noise_envs(BOX, image), n_steps=8, batch_size=16, policy_kwargs=kwargs)
    chosen = choose(model._plan(), "auto")
    assert chosen.engine.path == "reference" and chosen.why == why
    model.learn(16)


class Looks(BaseCallback):
    """Records what of the modules' attributes has changed during a rollout."""

    def _on_training_start(self) -> None:
        self.changed: set[str] = set()
        self.before = [dict(vars(module)) for module in self.model.policy.modules()]

    def _on_step(self) -> bool:
        for was, module in zip(self.before, self.model.policy.modules(), strict=True):
            now = vars(module)
            self.changed |= {name for name in {**was, **now} if was.get(name) is not now.get(name)}
        return True


def test_the_policy_itself_stays_unchanged_while_its_first_layers_are_computed_apart() -> None:
    """An interrupt at any moment must not leave it changed."""
    model, callback = updated(PPOClip, True), Looks()
    places = [each.data_ptr() for each in model.policy.parameters()]
    model.learn(60, callback=callback)
    assert callback.changed <= {"training"} and model.policy.normalize_images
    assert [each.data_ptr() for each in model.policy.parameters()] == places
    assert not model.policy.optimizer.param_groups[0]["fused"]


with_onednn = pytest.mark.skipif(
    not (th.backends.mkl.is_available() and th.backends.mkldnn.is_available()), reason="of PyTorch with MKL and oneDNN"
)


@with_onednn
@pytest.mark.parametrize("n_rows", [1, 7, 40])
@pytest.mark.parametrize("strided", [False, True])
def test_a_product_and_its_gradients(n_rows: int, strided: bool) -> None:
    th.manual_seed(0)
    layer, rows = nn.Linear(129, 5), th.randn(129, n_rows).t() if strided else th.randn(n_rows, 129)
    if strided:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    inputs = [rows.requires_grad_(), *layer.parameters()]
    got, wanted = (of(rows, layer.weight, layer.bias) for of in (image_engine.Product.apply, functional.linear))
    th.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    gradient = th.randn(n_rows, 5)
    gradients = (th.autograd.grad(of, inputs, gradient) for of in (got, wanted))
    th.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@with_onednn
def test_the_large_layer_is_multiplied_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, ...]] = set()
    multiply = image_engine.multiply

    def noted(a: th.Tensor, b: th.Tensor, bias: th.Tensor | None = None) -> th.Tensor:
        seen.add(tuple(b.shape))
        return multiply(a, b, bias)

    monkeypatch.setattr(image_engine, "multiply", noted)
    assert_same(*(updated(PPOClip, fast, images=FRAMES) for fast in (False, True)))
    # The factors of the output and of the gradients, for minibatches of 25 and 10 rows.
    n_flat = 64 * 2 * 4
    assert seen == {(512, n_flat), (n_flat, 512), (n_flat, 25), (n_flat, 10)}
