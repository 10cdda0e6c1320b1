"""The divergences beside KL(old || new): against enumeration, numerical integration and numbers worked out by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import inf, log, nan
from typing import Any

import mpmath
import numpy as np
import pytest
import torch as th
from engine_models import assert_same_update, collected
from sb3_contrib.common.maskable.distributions import (
    MaskableBernoulliDistribution,
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
)
from scipy.integrate import quad
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from test_kl_extremes import CATEGORIES, COINS, Logits

from helpers import ACTION_SPACES
from sb3_ppo_variants import ArgumentError, Batch, MissingKLError, Objective, PPOCustom, register_kl
from sb3_ppo_variants.kl import _REGISTRY, divergences_of

ORDERS = [0.3, 0.5, 0.999, 1.01, 2.0]
# Each takes the densities of the old and the new policy; a divergence is a function of the integral of the first entry.
DENSITIES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[float], float]]] = {
    "kl": (lambda p, q: p * np.log(p / q), lambda total: total),
    "reverse_kl": (lambda p, q: q * np.log(q / p), lambda total: total),
    **{
        f"renyi {a}": (lambda p, q, a=a: p**a * q ** (1 - a), lambda total, a=a: log(total) / (a - 1))  # type: ignore[misc]
        for a in ORDERS
    },
    "jensen_shannon": (
        lambda p, q: (p * np.log(2 * p / (p + q)) + q * np.log(2 * q / (p + q))) / 2,
        lambda total: total,
    ),
}
ADDITIVE = [name for name in DENSITIES if name != "jensen_shannon"]


def computed(name: str, old: Any, new: Any) -> th.Tensor:
    """Return a divergence between two distributions, shape ``(batch,)``."""
    divergences = divergences_of(new)
    method, *order = name.split()
    return getattr(divergences, method)(divergences.parameters(old), divergences.parameters(new), *map(float, order))


def logits(n: int, scale: float = 1.0) -> th.Tensor:
    return th.randn(1, n, dtype=th.float64) * scale


def masked(distribution: Any, n: int, masks: list[int]) -> Any:
    distribution.proba_distribution(action_logits=logits(n))
    distribution.apply_masking(th.tensor([masks], dtype=th.bool))
    return distribution


# How to make a distribution, and the outcomes of each of its actions.
DISCRETE: dict[str, tuple[Callable[[], Any], list[list[int]]]] = {
    "Categorical": (lambda: CategoricalDistribution(4).proba_distribution(logits(4)), [[0, 1, 2, 3]]),
    "MultiCategorical": (
        lambda: MultiCategoricalDistribution([2, 3]).proba_distribution(logits(5)),
        [[0, 1], [0, 1, 2]],
    ),
    "Bernoulli": (lambda: BernoulliDistribution(3).proba_distribution(logits(3)), [[0, 1]] * 3),
    "one coin": (lambda: BernoulliDistribution(1).proba_distribution(logits(1)), [[0, 1]]),
    "one part": (lambda: MultiCategoricalDistribution([3]).proba_distribution(logits(3)), [[0, 1, 2]]),
    "masked Categorical": (lambda: masked(MaskableCategoricalDistribution(4), 4, [1, 0, 1, 1]), [[0, 2, 3]]),
    "masked MultiCategorical": (
        lambda: masked(MaskableMultiCategoricalDistribution([3, 2]), 5, [1, 1, 0, 1, 1]),
        [[0, 1], [0, 1]],
    ),
    "masked Bernoulli": (lambda: masked(MaskableBernoulliDistribution(2), 4, [1, 1, 0, 1]), [[0, 1], [1]]),
}
SINGLE = ["Categorical", "one coin", "one part", "masked Categorical"]


@pytest.mark.parametrize("which", DENSITIES)
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_actions_against_enumeration(name: str, which: str) -> None:
    make, outcomes = DISCRETE[name]
    old, new = make(), make()
    if which == "jensen_shannon" and name not in SINGLE:
        with pytest.raises(MissingKLError, match=r"of [23] discrete actions is not known"):
            computed(which, old, new)
        return
    of_outcome, of_total = DENSITIES[which]
    actions = th.tensor([*product(*outcomes)], dtype=th.float64)
    if name in ("Categorical", "masked Categorical"):
        actions = actions[:, 0]

    def probability(distribution: Any, action: th.Tensor) -> float:
        return float(distribution.log_prob(action[None]).exp())

    pairs = [(probability(old, action), probability(new, action)) for action in actions]
    assert sum(p for p, _ in pairs) == pytest.approx(1), "the outcomes are complete"
    expected = of_total(sum(of_outcome(p, q) for p, q in pairs))
    found = computed(which, old, new)
    assert found.shape == (1,) and found.dtype == th.float64
    assert found.item() == pytest.approx(expected, rel=1e-6)
    assert expected > 1e-3


def gaussian(cls: Any, dimensions: int = 1) -> Any:
    mean = th.randn(1, dimensions, dtype=th.float64) * 0.5
    return cls(dimensions).proba_distribution(mean, th.rand(dimensions, dtype=th.float64) * 0.3 - 0.5)


def gsde(squash: bool) -> Any:
    distribution = StateDependentNoiseDistribution(1, squash_output=squash)
    distribution.latent_sde_dim = 3
    latent = th.tensor([[-0.5, 0.8, 0.4]], dtype=th.float64)
    mean, log_std = th.randn(1, 1, dtype=th.float64) * 0.5, th.rand(3, 1, dtype=th.float64) * 0.3 - 0.5
    return distribution.proba_distribution(mean, log_std, latent)


# How to make a distribution of one action dimension, and the bounds of the actions.
CONTINUOUS: dict[str, tuple[Callable[[], Any], float]] = {
    "DiagGaussian": (lambda: gaussian(DiagGaussianDistribution), 9.0),
    "SquashedDiagGaussian": (lambda: gaussian(SquashedDiagGaussianDistribution), 1.0),
    "gSDE": (lambda: gsde(squash=False), 9.0),
    "squashed gSDE": (lambda: gsde(squash=True), 1.0),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("which", ADDITIVE)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_actions_against_integration(name: str, which: str) -> None:
    if "squash" in name.lower() and which in ("renyi 0.999", "renyi 1.01"):
        return  # SB3's density of squashed actions has the integral 1 - 1e-6, which these orders amplify.
    make, bound = CONTINUOUS[name]
    old, new = make(), make()
    of_action, of_total = DENSITIES[which]

    def integrand(action: float) -> float:
        at = th.tensor([[action]], dtype=th.float64)
        p, q = (float(distribution.log_prob(at).exp()) for distribution in (old, new))
        return float(of_action(p, q)) if min(p, q) > 1e-200 else 0.0

    total = quad(integrand, -bound, bound, limit=200)[0]
    found = computed(which, old, new)
    assert found.shape == (1,)
    assert found.item() == pytest.approx(of_total(total), rel=1e-4, abs=1e-6)


def normal(mean: list[float], std: list[float]) -> Any:
    return DiagGaussianDistribution(len(mean)).proba_distribution(th.tensor([mean]), th.tensor(std).log())


def test_gaussians_by_hand() -> None:
    old, new = normal([0.0], [1.0]), normal([1.0], [2.0])
    # KL(N(1, 4) || N(0, 1)) = -log 2 + (4 + 1) / 2 - 1/2
    assert computed("reverse_kl", old, new).item() == pytest.approx(-log(2) + 2)
    # With a common standard deviation s, D_a = a (m0 - m1)^2 / (2 s^2): 3 * 4 / 8 + 3 * 1 / 2
    old, new = normal([0.0, 1.0], [2.0, 1.0]), normal([2.0, 0.0], [2.0, 1.0])
    assert computed("renyi 3", old, new).item() == pytest.approx(3.0)
    # a = 1/2 with a common mean: s_a^2 = (1 + 4) / 2, and D = 2 log(s_a / sqrt(1 * 2)) = log(5 / 4)
    assert computed("renyi 0.5", normal([3.0], [1.0]), normal([3.0], [2.0])).item() == pytest.approx(log(1.25))


def categorical(*probabilities: float) -> Any:
    return CategoricalDistribution(len(probabilities)).proba_distribution(th.tensor([probabilities]).log())


def test_categories_by_hand() -> None:
    old, new = categorical(0.5, 0.5), categorical(0.25, 0.75)
    assert computed("reverse_kl", old, new).item() == pytest.approx(0.25 * log(0.5) + 0.75 * log(1.5))
    # log(0.25 / 0.25 + 0.25 / 0.75)
    assert computed("renyi 2", old, new).item() == pytest.approx(log(4 / 3), rel=1e-6)
    # m = (3/8, 5/8)
    of_old, of_new = 0.5 * log(4 / 3) + 0.5 * log(4 / 5), 0.25 * log(2 / 3) + 0.75 * log(6 / 5)
    assert computed("jensen_shannon", old, new).item() == pytest.approx((of_old + of_new) / 2, rel=1e-6)


@pytest.mark.parametrize("name", [*DISCRETE, *CONTINUOUS])
def test_gradients_against_finite_differences(name: str) -> None:
    make = {**DISCRETE, **CONTINUOUS}[name][0]
    old, new = make(), make()
    divergences = divergences_of(new)
    was = divergences.parameters(old)
    now = tuple(parameter.detach().requires_grad_() for parameter in divergences.parameters(new))
    for which in DENSITIES if name in SINGLE else ADDITIVE:
        method, *order = which.split()
        numbers = map(float, order)

        def divergence(*parameters: th.Tensor, method: str = method, order: Any = tuple(numbers)) -> th.Tensor:
            return getattr(divergences, method)(was, parameters, *order)

        assert th.autograd.gradcheck(divergence, now)


@pytest.mark.parametrize("make", [lambda: normal([0.3], [1.001]), lambda: categorical(0.29, 0.71)])
def test_close_policies_in_single_precision(make: Any) -> None:
    """Near order 1, a Renyi divergence is the KL, to its first digits even if the policies hardly differ."""
    old, new = make(), normal([0.301], [1.0]) if isinstance(make(), DiagGaussianDistribution) else categorical(0.3, 0.7)
    divergences = divergences_of(new)
    exactly = [tuple(each.double() for each in divergences.parameters(one)) for one in (old, new)]
    kl = divergences.kl(*exactly).item()
    for order in (1 - 1e-4, 1 - 1e-7, 1, 1 + 1e-7, 1 + 1e-4):
        found = divergences.renyi(divergences.parameters(old), divergences.parameters(new), order)
        assert found.dtype == th.float32
        assert found.item() == pytest.approx(kl, rel=2e-3, abs=1e-7)


@pytest.mark.parametrize("order", [0, -1.0, nan, inf, "2", None])
def test_an_order_is_positive(order: Any) -> None:
    divergences = divergences_of(CategoricalDistribution(2))
    parameters = (th.zeros(1, 2),)
    with pytest.raises(ArgumentError, match=r"^order=.* is not allowed; allowed: a finite number > 0$"):
        divergences.renyi(parameters, parameters, order)


@pytest.mark.parametrize("cls", [DiagGaussianDistribution, SquashedDiagGaussianDistribution])
def test_gaussians_have_no_jensen_shannon_divergence(cls: Any) -> None:
    with pytest.raises(MissingKLError, match="DiagGaussianDistribution is not known: it has no closed form"):
        computed("jensen_shannon", gaussian(cls), gaussian(cls))


class Uniform(CategoricalDistribution):
    """A user's distribution."""


def probabilities(distribution: Any) -> tuple[th.Tensor]:
    return (distribution.distribution.probs,)


def distance(old: Any, new: Any, order: float = 1.0) -> th.Tensor:
    return order * (old[0] - new[0])[:, 0]


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_ppo_variants.kl._REGISTRY", dict(_REGISTRY))


@pytest.mark.usefixtures("forgotten")
def test_a_registered_distribution_may_have_all() -> None:
    register_kl(Uniform, probabilities, distance, renyi=distance, jensen_shannon=lambda old, new: old[0])
    one, other = (Uniform(2).proba_distribution(th.tensor([p]).log()) for p in ([0.5, 0.5], [0.25, 0.75]))
    assert computed("renyi 2", one, other).item() == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"divergence registered for Uniform has the shape \(1, 2\)"):
        computed("jensen_shannon", one, other)


def exactly(which: str, old: Logits, new: Logits) -> float:
    """Compute a divergence of a categorical distribution in high precision, from the logits of both policies."""
    weights = [[mpmath.exp(x) for x in row] for row in (old, new)]
    p, q = ([x / mpmath.fsum(row) for x in row] for row in weights)
    method, *order = which.split()
    if method == "renyi":
        a = mpmath.mpf(float(order[0]))
        return float(mpmath.log(mpmath.fsum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True))) / (a - 1))
    middle = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    pairs = {"kl": [(p, q)], "reverse_kl": [(q, p)], "jensen_shannon": [(p, middle), (q, middle)]}[method]
    terms = [x * mpmath.log(x / y) for first, second in pairs for x, y in zip(first, second, strict=True)]
    return float(mpmath.fsum(terms) / len(pairs))


@pytest.mark.parametrize("which", DENSITIES)
@pytest.mark.parametrize(("dtype", "rel", "absolute"), [(th.float64, 1e-9, 1e-12), (th.float32, 1e-5, 2e-7)])
@pytest.mark.parametrize("of_coins", [False, True])
def test_probabilities_that_are_zero(which: str, dtype: th.dtype, rel: float, absolute: float, of_coins: bool) -> None:
    for pair in COINS if of_coins else CATEGORIES:
        old, new = (th.tensor(row, dtype=dtype)[None] for row in pair)
        if of_coins:
            old, new = old[:, :1], new[:, :1]
        divergences = divergences_of(BernoulliDistribution(1) if of_coins else CategoricalDistribution(3))
        new.requires_grad_()
        method, *order = which.split()
        found = getattr(divergences, method)((old,), (new,), *map(float, order))
        was, now = ([0.0] * of_coins + row.flatten().tolist() for row in (old, new))
        assert found.item() == pytest.approx(exactly(which, was, now), rel=rel, abs=absolute)
        found.backward()
        assert new.grad is not None and new.grad.isfinite().all()


@dataclass(frozen=True)
class Penalty(Objective):
    """Penalises further divergences."""

    needs_kl = True
    jensen_shannon: float = 0.0

    def loss(self, batch: Batch) -> th.Tensor:
        penalty = batch.renyi(0.5) + 0.1 * batch.renyi(1.3)
        if self.jensen_shannon:
            penalty = penalty + self.jensen_shannon * batch.jensen_shannon
        return (penalty - batch.ratio * batch.advantages).mean()


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_objectives_read_them_on_both_paths(space: str, double_precision: Any) -> None:
    weight = 0.5 if space == "Discrete" else 0.0
    model = collected(PPOCustom, ACTION_SPACES[space], objective=Penalty(weight))
    double_precision(model)
    assert_same_update(model)
