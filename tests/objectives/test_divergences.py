"""The KL in both directions: against enumeration and numerical integration."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch as th
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

from sb3_ppo_variants.kl import divergences_of

# Each takes the densities of the old and the new policy.
DENSITIES: dict[str, Callable[[Any, Any], Any]] = {
    "kl": lambda p, q: p * np.log(p / q),
    "reverse_kl": lambda p, q: q * np.log(q / p),
}


def computed(name: str, old: Any, new: Any) -> th.Tensor:
    """Return a divergence between two distributions, shape ``(batch,)``."""
    divergences = divergences_of(new)
    found: th.Tensor = getattr(divergences, name)(divergences.parameters(old), divergences.parameters(new))
    return found


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


@pytest.mark.parametrize("which", DENSITIES)
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_actions_against_enumeration(name: str, which: str) -> None:
    make, outcomes = DISCRETE[name]
    old, new = make(), make()
    actions = th.tensor([*product(*outcomes)], dtype=th.float64)
    if name in ("Categorical", "masked Categorical"):
        actions = actions[:, 0]

    def probability(distribution: Any, action: th.Tensor) -> float:
        return float(distribution.log_prob(action[None]).exp())

    pairs = [(probability(old, action), probability(new, action)) for action in actions]
    assert sum(p for p, _ in pairs) == pytest.approx(1), "the outcomes are complete"
    expected = sum(DENSITIES[which](p, q) for p, q in pairs)
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
@pytest.mark.parametrize("which", DENSITIES)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_actions_against_integration(name: str, which: str) -> None:
    make, bound = CONTINUOUS[name]
    old, new = make(), make()

    def integrand(action: float) -> float:
        at = th.tensor([[action]], dtype=th.float64)
        p, q = (float(distribution.log_prob(at).exp()) for distribution in (old, new))
        return float(DENSITIES[which](p, q)) if min(p, q) > 1e-200 else 0.0

    total = quad(integrand, -bound, bound, limit=200)[0]
    found = computed(which, old, new)
    assert found.shape == (1,)
    assert found.item() == pytest.approx(total, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", [*DISCRETE, *CONTINUOUS])
def test_gradients_against_finite_differences(name: str) -> None:
    make = {**DISCRETE, **CONTINUOUS}[name][0]
    old, new = make(), make()
    divergences = divergences_of(new)
    was = divergences.parameters(old)
    now = tuple(parameter.detach().requires_grad_() for parameter in divergences.parameters(new))
    for which in (divergences.kl, divergences.reverse_kl):
        assert th.autograd.gradcheck(lambda *parameters, which=which: which(was, parameters), now)
