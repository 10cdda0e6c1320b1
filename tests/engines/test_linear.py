"""Large linear layers are the same when they are multiplied by oneDNN."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from helpers import ACTION_SPACES, collect, noise_envs
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.engines import views
from sb3_ppo_variants.engines.views import Product, has_onednn, with_onednn

pytestmark = pytest.mark.skipif(not has_onednn(), reason="of PyTorch with MKL and oneDNN")

FRAMES = spaces.Box(0, 255, (1, 52, 60), np.uint8)
WIDE: dict[str, Any] = {"net_arch": [256]}


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the right factors of all products."""
    seen: list[tuple[int, ...]] = []
    product = views._multiply

    def noted(a: th.Tensor, b: th.Tensor, bias: th.Tensor | None = None) -> th.Tensor:
        seen.append(tuple(b.shape))
        return product(a, b, bias)

    monkeypatch.setattr(views, "_multiply", noted)
    return seen


def created(**arguments: Any) -> Any:
    env = noise_envs(ACTION_SPACES["Discrete"], FRAMES)
    return PPOClip("CnnPolicy", env, **{"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 1, **arguments})


@pytest.mark.parametrize("n_rows", [1, 7, 40])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strided", [False, True])
def test_a_product_and_its_gradients(n_rows: int, bias: bool, strided: bool) -> None:
    th.manual_seed(0)
    layer, rows = nn.Linear(129, 5, bias), th.randn(129, n_rows).t() if strided else th.randn(n_rows, 129)
    if strided:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    inputs = [rows.requires_grad_(), *layer.parameters()]
    got, wanted = (of(rows, layer.weight, layer.bias) for of in (Product.apply, functional.linear))
    th.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    gradient = th.randn(n_rows, 5)
    gradients = (th.autograd.grad(of, inputs, gradient) for of in (got, wanted))
    th.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def test_a_derivative_worked_out_by_hand() -> None:
    rows, weight = th.tensor([[1.0, 2.0]], requires_grad=True), th.tensor([[3.0, 4.0]], requires_grad=True)
    bias = th.tensor([5.0], requires_grad=True)
    output = Product.apply(rows, weight, bias)
    (2 * output).sum().backward()
    assert output.item() == 16
    gradients = [tensor.grad for tensor in (rows, weight, bias)]
    th.testing.assert_close(gradients, [th.tensor([[6.0, 8.0]]), th.tensor([[2.0, 4.0]]), th.tensor([2.0])])


@pytest.mark.parametrize("shared", [True, False])
def test_updates_match_the_reference(shared: bool, products: list[tuple[int, ...]]) -> None:
    policy_kwargs = {"share_features_extractor": shared, **WIDE}
    reference, fast = (created(fast=fast, learning_rate=1e-4, policy_kwargs=policy_kwargs) for fast in (False, True))
    for model in (reference, fast):
        collect(model)
    np.testing.assert_allclose(fast.rollout_buffer.values, reference.rollout_buffer.values, rtol=1e-4, atol=1e-5)
    assert set(products) == {(512, 768), (256, 512)}
    fast.rollout_buffer = reference.rollout_buffer
    for model in (reference, fast):
        np.random.seed(3)
        model.train()
    for wanted, got in zip(reference.policy.parameters(), fast.policy.parameters(), strict=True):
        th.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    # The factors of the gradients too, for 16 rows.
    assert set(products) >= {(768, 512), (768, 16), (512, 256), (512, 16)}


def test_layers_that_stay_as_they_are(products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    small, own = nn.Linear(255, 256), nn.Linear(256, 256)
    own.forward = nn.Identity().forward  # type: ignore[method-assign]
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(256, 256))
    for module in (small, own, parametrized, nn.Sequential(own, nn.Tanh())):
        assert with_onednn(module) is module
    assert with_onednn(large := nn.Linear(256, 256)) is not large
    monkeypatch.setattr(th.backends.mkl, "is_available", lambda: False)
    assert with_onednn(large) is large
    assert not products


@pytest.mark.parametrize("dtype", [th.float64, th.bfloat16])
def test_other_precisions(dtype: th.dtype, products: list[tuple[int, ...]]) -> None:
    layer, rows = nn.Linear(256, 256, dtype=dtype), th.randn(4, 256, dtype=dtype)
    assert th.equal(with_onednn(layer)(rows), layer(rows))
    assert not products


def test_autocast_and_rows_in_sequences(products: list[tuple[int, ...]]) -> None:
    layer, rows = nn.Linear(256, 256), th.randn(4, 256)
    with th.autocast("cpu", th.bfloat16):
        assert with_onednn(layer)(rows).dtype == th.bfloat16
    assert th.equal(with_onednn(layer)(rows[None]), layer(rows[None]))
    assert not products


def test_modules_that_are_shared_stay_shared() -> None:
    layer = nn.Linear(256, 256)
    block = nn.Sequential(layer)
    module = nn.ModuleDict({"a": block, "b": layer, "c": block})
    view = with_onednn(module)
    assert view is not module and module["b"] is layer is block[0]
    assert view["a"] is view["c"] is not block and view["a"].get_submodule("0") is view["b"] is not layer
    assert list(map(id, view.parameters())) == list(map(id, module.parameters()))


def test_hooks_of_a_layer_are_called_with_it(products: list[tuple[int, ...]]) -> None:
    model, seen = created(), []
    layer = model.policy.features_extractor.linear[0]
    layer.register_forward_hook(lambda *arguments: seen.append(arguments))
    model.learn(32)
    # At least the steps of a rollout and the four minibatches of an update.
    assert len(seen) >= 16 + 4 and {module for module, *_ in seen} == {layer}
    assert not products


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("normalize", [nn.utils.spectral_norm, nn.utils.weight_norm])
def test_hooks_that_set_a_weight(normalize: Any) -> None:
    weights = []
    for fast in (False, "auto"):
        model = created(fast=fast)
        normalize(model.policy.features_extractor.linear[0])
        model.policy.optimizer = th.optim.Adam(model.policy.parameters(), lr=1e-3)
        model.learn(32)
        weights.append(model.policy.state_dict())
    th.testing.assert_close(*weights, rtol=1e-4, atol=1e-4)
