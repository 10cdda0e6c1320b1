"""The parts of the fast path: values against PyTorch's distributions and losses, gradients against autograd."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from sb3_ppo_variants import losses
from sb3_ppo_variants.backends.arrays import discrete
from sb3_ppo_variants.backends.arrays.adam import Adam, clip_norm
from sb3_ppo_variants.backends.arrays.distribution import Distribution
from sb3_ppo_variants.backends.arrays.gae import compute_returns_and_advantage
from sb3_ppo_variants.backends.arrays.gaussian import DiagGaussian
from sb3_ppo_variants.backends.arrays.mlp import RELU, TANH, Activation, Linear, Mlp

N = 37
SIZES = [2, 4]
LOG_STD = th.tensor([0.3, -0.5, 0.1], dtype=th.float64)
# Rounding errors in double precision.
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}


def randn(*shape: int) -> th.Tensor:
    return th.randn(*shape, dtype=th.float64)


def gaussian(mean: th.Tensor, log_std: th.Tensor) -> list[Any]:
    return [Normal(mean, log_std.exp().expand_as(mean))]


def categorical(logits: th.Tensor) -> list[Any]:
    return [Categorical(logits=logits)]


def multi_categorical(logits: th.Tensor) -> list[Any]:
    return [Categorical(logits=part) for part in logits.split(SIZES, dim=1)]


def bernoulli(logits: th.Tensor) -> list[Any]:
    return [Bernoulli(logits=logits)]


def multi(logits: np.ndarray) -> Distribution:
    return discrete.MultiCategorical.of(logits, SIZES)


def integers(*sizes: int) -> Callable[[], th.Tensor]:
    return lambda: th.stack([th.randint(size, (N,)) for size in sizes], dim=1)


# Our distribution, PyTorch's as parts to be summed, the parameters, and the actions with one row per state.
FAMILIES: dict[str, tuple[Callable[..., Any], Callable[..., list[Any]], Callable[[], list[th.Tensor]], Any]] = {
    "gaussian": (DiagGaussian, gaussian, lambda: [randn(N, 3), LOG_STD + randn(3)], lambda: randn(N, 3)),
    "categorical": (discrete.Categorical, categorical, lambda: [3 * randn(N, 4)], integers(4)),
    "multi": (multi, multi_categorical, lambda: [3 * randn(N, sum(SIZES))], integers(*SIZES)),
    "bernoulli": (
        discrete.Bernoulli,
        bernoulli,
        lambda: [3 * randn(N, 3)],
        lambda: th.randint(2, (N, 3)).double(),
    ),
}
family = pytest.mark.parametrize("name", FAMILIES)


def summed(tensor: th.Tensor) -> th.Tensor:
    return tensor if tensor.ndim == 1 else tensor.sum(dim=1)


def their_log_prob(parts: list[Any], actions: th.Tensor) -> th.Tensor:
    if not isinstance(parts[0], Categorical):
        return parts[0].log_prob(actions).sum(dim=1)
    return th.stack([part.log_prob(actions[:, i]) for i, part in enumerate(parts)]).sum(dim=0)


def their_entropy(parts: list[Any]) -> th.Tensor:
    return th.stack([summed(part.entropy()) for part in parts]).sum(dim=0)


def their_kl(old: list[Any], new: list[Any]) -> th.Tensor:
    return th.stack([summed(kl_divergence(p, q)) for p, q in zip(old, new, strict=True)]).sum(dim=0)


@family
def test_distribution_values_and_gradients(name: str) -> None:
    ours, theirs, parameters, draw_actions = FAMILIES[name]
    new, old, actions = parameters(), parameters(), draw_actions()
    for tensor in new:
        tensor.requires_grad_()
    their_new, their_old = theirs(*new), theirs(*old)
    our_new, our_old = ours(*(t.detach().numpy() for t in new)), ours(*(t.numpy() for t in old))
    log_prob, entropy, kl = (
        their_log_prob(their_new, actions),
        their_entropy(their_new),
        their_kl(their_old, their_new),
    )
    np.testing.assert_allclose(our_new.log_prob(actions.numpy()), log_prob.detach(), **CLOSE)
    np.testing.assert_allclose(our_new.entropy(), entropy.detach(), **CLOSE)
    np.testing.assert_allclose(our_new.kl_from(our_old), kl.detach(), **CLOSE)

    weights = randn(N)
    kl_weights = randn(N)
    for d_entropy, has_kl in ((0.0, False), (-0.3, False), (0.0, True), (-0.3, True)):
        d_kl = kl_weights if has_kl else th.zeros(N)
        loss = (weights * log_prob + d_entropy * entropy + d_kl * kl).sum()
        expected = th.autograd.grad(loss, new, retain_graph=True)
        remembered = (our_old, kl_weights.numpy()) if has_kl else (None, None)
        gradients = our_new.gradient(actions.numpy(), weights.numpy(), d_entropy, *remembered)
        for gradient, wanted in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-12)


@family
def test_rows_of_a_distribution(name: str) -> None:
    ours, _, parameters, draw_actions = FAMILIES[name]
    distribution, actions, rows = ours(*(t.numpy() for t in parameters())), draw_actions().numpy(), np.array([5, 0, 5])
    taken = distribution.take(rows)
    np.testing.assert_array_equal(taken.log_prob(actions[rows]), distribution.log_prob(actions)[rows])
    np.testing.assert_array_equal(taken.entropy(), distribution.entropy()[rows])


@family
def test_large_outputs_stay_finite(name: str) -> None:
    ours, _, parameters, draw_actions = FAMILIES[name]
    output, *rest = (t.numpy() for t in parameters())
    distribution, actions = ours(output * 1e3, *rest), draw_actions().numpy()
    assert np.isfinite(distribution.log_prob(actions)).all()
    assert np.isfinite(distribution.entropy()).all()
    assert np.isfinite(distribution.gradient(actions, np.ones(N), 1.0, None, None)[0]).all()


@pytest.mark.parametrize("clip_range_vf", [None, 0.1, 1.0])
def test_value_loss(clip_range_vf: float | None) -> None:
    values, old_values, returns = randn(N).requires_grad_(), randn(N), randn(N)
    expected = losses.value_loss(values, old_values, returns, clip_range_vf)
    v, old, target = (tensor.detach().numpy() for tensor in (values, old_values, returns))
    errors, gradient = losses.value_gradient(v, old, target, clip_range_vf)
    assert errors.shape == (N,) and errors.mean() == pytest.approx(expected.item(), rel=1e-9)
    np.testing.assert_allclose(gradient, th.autograd.grad(expected, values)[0], rtol=1e-6, atol=1e-12)


def test_advantages_of_several_minibatches() -> None:
    advantages = 3 + 2 * randn(4, N)
    expected = th.stack([losses.normalize_advantages(row) for row in advantages])
    np.testing.assert_allclose(losses.normalized_advantages(advantages.numpy()), expected, **CLOSE)
    assert losses.normalized_advantages(np.array([3.0])) == [3.0]


def test_measures() -> None:
    log_ratio = 0.3 * randn(N)
    approx_kl = losses.approximate_kls(log_ratio.numpy())
    assert approx_kl.mean() == pytest.approx(losses.approximate_kl(log_ratio).item(), rel=1e-9)
    clipped = losses.is_clipped(log_ratio.numpy(), 0.2)
    assert clipped.mean() == pytest.approx(losses.clip_fraction(log_ratio.exp(), 0.2).item())


@pytest.mark.parametrize(("activation", "module"), [(TANH, th.nn.Tanh), (RELU, th.nn.ReLU)])
@pytest.mark.parametrize("n_layers", [0, 1, 3])
@pytest.mark.parametrize("stacked", [False, True])
def test_mlp(activation: Activation, module: type[th.nn.Module], n_layers: int, stacked: bool) -> None:
    sizes = [5, 4, 7, 3][: n_layers + 1]
    x, target = randn(N, 5), randn(N, sizes[-1])
    nets = []
    for _ in range(2 if stacked else 1):
        layers = [(th.nn.Linear(a, b).double(), module()) for a, b in pairwise(sizes)]
        nets.append(th.nn.Sequential(*(part for layer in layers for part in layer)))
    for net in nets:
        if n_layers:
            (net(x) * target).sum().backward()

    def arrays(pick: Callable[[th.Tensor], Any]) -> list[Linear]:
        columns = zip(*([m for m in net if isinstance(m, th.nn.Linear)] for net in nets), strict=True)
        both = [
            Linear(np.stack([pick(m.weight) for m in c]), np.stack([pick(m.bias)[None] for m in c])) for c in columns
        ]
        return both if stacked else [Linear(layer.weight[0], layer.bias[0]) for layer in both]

    mlp, gradients = Mlp(arrays(lambda p: p.detach().numpy()), activation), arrays(lambda p: np.zeros(p.shape))
    outputs = mlp.forward(x.numpy())
    expected = [net(x).detach().numpy() for net in nets]
    np.testing.assert_allclose(outputs[-1], expected if stacked and n_layers else expected[0], **CLOSE)
    mlp.gradient(outputs, np.stack([target.numpy()] * 2) if stacked else target.numpy().copy(), into=gradients)
    for gradient, wanted in zip(gradients, arrays(lambda p: p.grad.numpy() if p.grad is not None else 0), strict=True):
        np.testing.assert_allclose(gradient.weight, wanted.weight, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(gradient.bias, wanted.bias, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
@pytest.mark.parametrize("max_norm", [0.0, 0.5, np.inf])
def test_adam_and_clipping(max_norm: float, betas: tuple[float, float]) -> None:
    parameter = th.nn.Parameter(randn(11))
    vector = parameter.detach().numpy().copy()
    theirs = th.optim.Adam([parameter], lr=0.01, betas=betas, eps=1e-5)
    zeros = np.zeros(11)
    ours = Adam(zeros, zeros, steps=0, learning_rate=0.01, betas=betas, eps=1e-5)
    for _ in range(20):
        gradient = randn(11)
        parameter.grad = gradient.clone()
        th.nn.utils.clip_grad_norm_([parameter], max_norm)
        theirs.step()
        array = gradient.numpy()
        clip_norm(array, max_norm)
        ours.step(vector, array)
    np.testing.assert_allclose(vector, parameter.detach(), rtol=1e-9)
    state = theirs.state[parameter]
    for moment, key in zip(ours.moments, ("exp_avg", "exp_avg_sq"), strict=True):
        np.testing.assert_allclose(moment, state[key], rtol=1e-9)
    assert ours.steps == state["step"] == 20


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="has the norm inf"):
        clip_norm(np.array([np.inf, 1.0]), 0.5)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [1, 40])
def test_gae_is_that_of_the_buffer(n_steps: int, n_envs: int) -> None:
    rng = np.random.default_rng(0)
    space = spaces.Box(-1, 1, (1,))
    buffers = [RolloutBuffer(n_steps, space, space, "cpu", 0.9, 0.97, n_envs) for _ in range(2)]
    rewards, values = rng.normal(size=(2, n_steps, n_envs)).astype(np.float32)
    starts, (last_values,) = rng.random((n_steps, n_envs)) < 0.2, rng.normal(size=(1, n_envs)).astype(np.float32)
    dones = np.arange(n_envs) == 0
    for buffer in buffers:
        buffer.rewards[:], buffer.values[:], buffer.episode_starts[:] = rewards, values, starts
    buffers[0].compute_returns_and_advantage(th.as_tensor(last_values), dones)
    compute_returns_and_advantage(buffers[1], last_values, dones)
    np.testing.assert_allclose(buffers[1].advantages, buffers[0].advantages, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(buffers[1].returns, buffers[0].returns, rtol=1e-5, atol=1e-6)
    assert buffers[1].advantages.dtype == buffers[1].returns.dtype == np.float32
