"""Distributions of continuous actions against SciPy, numerical integration and PyTorch's transformed distributions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.distributions import Beta, Gaussian, SquashedGaussian, distribution_of
from sb3_ppo_variants.kl import divergences_of

stats = pytest.importorskip("scipy.stats")
integrate = pytest.importorskip("scipy.integrate")

DIM, ROWS = 3, 20
PARTS = {
    "gaussian of state": Gaussian("state"),
    "squashed": SquashedGaussian(),
    "squashed of state": SquashedGaussian("state"),
    "beta": Beta(),
}


def made(part: Any, seed: int = 0, dim: int = DIM, rows: int = ROWS, scale: float = 1.0) -> tuple[Any, th.Tensor]:
    """Return a distribution with random parameters in double precision, and the outputs that it was made from."""
    generator = th.Generator().manual_seed(seed)
    distribution = part.make(dim)
    layer, log_std = distribution.proba_distribution_net(5)
    outputs = scale * th.randn(rows, layer.out_features, generator=generator, dtype=th.float64)
    outputs.requires_grad_()
    if log_std is not None:
        log_std = 0.3 * th.randn(dim, generator=generator, dtype=th.float64)
    return distribution.proba_distribution(outputs, log_std), outputs


def one_dimension(distribution: Any, at: int) -> tuple[Callable[[Any], Any], float, float]:
    """Return the density of the first action of a row by SciPy, and the ends of its support."""
    parameters = [each[at, 0].item() for each in divergences_of(distribution).parameters(distribution)]
    if "Beta" in type(distribution).__name__:
        return lambda x: stats.beta.pdf((x + 1) / 2, *parameters) / 2, -1.0, 1.0
    mean, std = parameters
    if "Squashed" in type(distribution).__name__:
        return lambda x: stats.norm.pdf(np.arctanh(x), mean, std) / (1 - x**2), -1.0, 1.0
    return lambda x: stats.norm.pdf(x, mean, std), mean - 12 * std, mean + 12 * std


def integral(function: Callable[[float], float], low: float, high: float) -> float:
    # The ends are left out: the densities of actions there are infinite or 0, and undefined in SciPy.
    edge = 1e-12 * (high - low)
    value: float = integrate.quad(function, low + edge, high - edge, limit=500, epsabs=1e-9, epsrel=1e-9)[0]
    return value


@pytest.mark.parametrize("name", PARTS)
def test_log_probabilities(name: str) -> None:
    distribution, _ = made(PARTS[name], dim=1)
    actions = th.linspace(-0.99, 0.99, ROWS, dtype=th.float64)[:, None]
    found = distribution.log_prob(actions)
    for i in range(ROWS):
        density, _, _ = one_dimension(distribution, i)
        assert found[i].item() == pytest.approx(np.log(density(actions[i, 0].item())), abs=1e-5)


@pytest.mark.parametrize("name", PARTS)
def test_entropies(name: str) -> None:
    distribution, _ = made(PARTS[name], dim=1)
    found = distribution.entropy()
    for i in range(2):
        density, low, high = one_dimension(distribution, i)
        wanted = integral(lambda x: -density(x) * np.log(max(density(x), 1e-300)), low, high)  # noqa: B023
        assert found[i].item() == pytest.approx(wanted, abs=2e-4 if "squashed" in name else 1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PARTS)
def test_divergences(name: str) -> None:
    old, new = (made(PARTS[name], seed=seed, dim=1, scale=0.5)[0] for seed in (1, 2))
    known = divergences_of(new)
    p, q = known.parameters(old), known.parameters(new)
    kl, reverse = known.kl(p, q), known.reverse_kl(p, q)
    for i in range(2):
        (before, low, high), (after, low2, high2) = one_dimension(old, i), one_dimension(new, i)
        ends = min(low, low2), max(high, high2)

        def divergence(first: Any, second: Any, ends: Any = ends) -> float:
            return integral(lambda x: first(x) * np.log((first(x) + 1e-300) / (second(x) + 1e-300)), *ends)

        assert kl[i].item() == pytest.approx(divergence(before, after), abs=1e-5)
        assert reverse[i].item() == pytest.approx(divergence(after, before), abs=1e-5)


@pytest.mark.parametrize("name", PARTS)
def test_gradients(name: str) -> None:
    """Log-probabilities, entropies and KLs against finite differences."""
    distribution, outputs = made(PARTS[name], rows=4)
    actions = th.rand(4, DIM, dtype=th.float64) * 1.8 - 0.9
    log_std = th.zeros(DIM, dtype=th.float64)
    old = tuple(each.detach() for each in divergences_of(distribution).parameters(made(PARTS[name], 5, rows=4)[0]))

    def numbers(outputs: th.Tensor) -> tuple[th.Tensor, ...]:
        new = distribution.proba_distribution(outputs, log_std)
        known = divergences_of(new)
        entropy = new.entropy()
        kls = known.kl(old, known.parameters(new)), known.reverse_kl(old, known.parameters(new))
        return new.log_prob(actions), *kls, *(() if entropy is None else (entropy,))

    assert th.autograd.gradcheck(numbers, (outputs,))


@pytest.mark.parametrize("name", PARTS)
def test_samples(name: str) -> None:
    """A Kolmogorov-Smirnov test against SciPy's distribution functions."""
    th.manual_seed(1)
    distribution, outputs = made(PARTS[name], dim=1, rows=1)
    log_std = th.tensor([0.4], dtype=th.float64)
    distribution.proba_distribution(outputs.detach().expand(20_000, -1), log_std)
    samples = distribution.sample()[:, 0].numpy()
    first, second = (each[0, 0].item() for each in divergences_of(distribution).parameters(distribution))
    if name == "beta":
        cdf = stats.beta(first, second, loc=-1, scale=2).cdf
    else:
        samples = np.arctanh(samples) if "squashed" in name else samples
        cdf = stats.norm(first, second).cdf
    assert stats.kstest(samples, cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("name", ["squashed", "squashed of state", "beta"])
def test_extremes_stay_finite(name: str, dtype: th.dtype) -> None:
    """Actions at the bounds, which rounding reaches, have finite log-probabilities and gradients."""
    for size in (0.0, 10.0, 80.0, -200.0):
        distribution = PARTS[name].make(2)
        n: Any = distribution.proba_distribution_net(5)[0].out_features
        outputs = th.full((3, n), size, dtype=dtype)
        if "state" in name:
            outputs[:, 2:] = 0.0
        outputs.requires_grad_()
        distribution.proba_distribution(outputs, th.zeros(2, dtype=dtype))
        actions = th.tensor([[-1.0, 1.0], [0.0, -1.0], [1.0, 1.0]], dtype=dtype)
        log_prob = distribution.log_prob(actions)
        assert log_prob.dtype == dtype
        assert th.isfinite(log_prob).all() and th.isfinite(distribution.mode()).all()
        assert (distribution.sample().abs() <= 1).all() and (distribution.mode().abs() <= 1).all()
        log_prob.sum().backward()
        assert th.isfinite(outputs.grad).all()  # type: ignore[arg-type]


def test_names_and_what_does_not_fit() -> None:
    assert distribution_of() == Gaussian("parameter")
    assert distribution_of("squashed_gaussian", "state") == SquashedGaussian("state")
    assert distribution_of(Beta()) == Beta()
    with pytest.raises(ArgumentError, match=r"policy_kwargs\['distribution'\]='cauchy' is not allowed; .*'beta'"):
        distribution_of("cauchy")
    with pytest.raises(ArgumentError, match=r"^std='sate' is not allowed; allowed: 'parameter', 'st"):
        distribution_of("gaussian", "sate")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="std='sate' is not allowed"):
        Gaussian("sate")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="std='state' needs a Gaussian, but distribution='beta'"):
        distribution_of("beta", "state")
    with pytest.raises(ArgumentError, match=r"std='state' has no effect beside distribution=Beta\(\)"):
        distribution_of(Beta(), "state")
