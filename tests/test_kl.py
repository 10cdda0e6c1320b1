"""Exact KL against closed forms worked out by hand, and the KLs that users register."""

from contextlib import suppress
from math import log
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
)
from torch.distributions import Laplace

from helpers import PENALISED
from sb3_ppo_variants import MissingKLError, register_kl
from sb3_ppo_variants.distributions import SquashedStateGaussianDistribution
from sb3_ppo_variants.hybrid import HybridDistribution
from sb3_ppo_variants.kl import _REGISTRY, divergences_of


def divergence(old: Distribution, new: Distribution) -> th.Tensor:
    divergences = divergences_of(new)
    return divergences.kl(divergences.parameters(old), divergences.parameters(new))


def gaussian(mean: list[list[float]], std: list[float]) -> DiagGaussianDistribution:
    return DiagGaussianDistribution(len(std)).proba_distribution(th.tensor(mean), th.tensor(std).log())


def categorical(probabilities: list[list[float]]) -> CategoricalDistribution:
    return CategoricalDistribution(len(probabilities[0])).proba_distribution(th.tensor(probabilities).log())


def test_gaussian_is_summed_over_dimensions() -> None:
    old = gaussian([[0.0, 5.0], [1.0, 5.0]], [1.0, 2.0])
    new = gaussian([[1.0, 5.0], [1.0, 5.0]], [2.0, 2.0])
    # log(s1 / s0) + (s0^2 + (m0 - m1)^2) / (2 s1^2) - 1/2 in the first dimension, 0 in the second
    expected = [log(2) + (1 + 1) / 8 - 0.5, log(2) + 1 / 8 - 0.5]
    assert divergence(old, new).tolist() == pytest.approx(expected)


# p = (1/2, 1/2) and q = (1/4, 3/4): 1/2 log 2 + 1/2 log 2/3
HALF_TO_QUARTER = 0.5 * log(2) + 0.5 * log(2 / 3)


def test_categorical() -> None:
    old, new = categorical([[0.5, 0.5], [0.2, 0.8]]), categorical([[0.25, 0.75], [0.2, 0.8]])
    assert divergence(old, new).tolist() == pytest.approx([HALF_TO_QUARTER, 0.0], abs=1e-7)


def test_multi_categorical_is_summed_over_dimensions() -> None:
    def make(*probabilities: float) -> MultiCategoricalDistribution:
        return MultiCategoricalDistribution([2, 3]).proba_distribution(th.tensor([probabilities]).log())

    old, new = make(0.5, 0.5, 0.2, 0.2, 0.6), make(0.25, 0.75, 0.1, 0.3, 0.6)
    assert divergence(old, new).tolist() == pytest.approx([HALF_TO_QUARTER + 0.2 * log(2) + 0.2 * log(2 / 3)])


def test_bernoulli_is_summed_over_dimensions() -> None:
    def make(*probabilities: float) -> BernoulliDistribution:
        p = th.tensor([probabilities])
        return BernoulliDistribution(2).proba_distribution(th.log(p / (1 - p)))

    assert divergence(make(0.5, 0.5), make(0.25, 0.25)).tolist() == pytest.approx([2 * HALF_TO_QUARTER])


class Uniform(CategoricalDistribution):
    """A user's custom distribution."""


def forget_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_ppo_variants.kl._REGISTRY", dict(_REGISTRY))


def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_ppo_variants.kl._REGISTRY", {})


@pytest.mark.parametrize("variant", PENALISED)
def test_a_penalty_without_a_kl_is_refused_at_construction(variant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown(monkeypatch)
    with pytest.raises(MissingKLError, match=r"register_kl\(CategoricalDistribution"):
        variant("MlpPolicy", "CartPole-v1")


def test_a_subclass_shares_the_kl_until_it_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_later(monkeypatch)
    assert divergences_of(Uniform(2)) is divergences_of(CategoricalDistribution(2))
    register_kl(Uniform, lambda d: (d.distribution.probs,), lambda old, new: (old[0] - new[0]).abs().sum(dim=1))
    old, new = (Uniform(2).proba_distribution(th.tensor([p]).log()) for p in ([0.5, 0.5], [0.25, 0.75]))
    assert divergence(old, new).tolist() == pytest.approx([0.5])


class Laplacian(DiagGaussianDistribution):
    """A subclass of SB3's distribution with a different density."""

    def proba_distribution(self, mean_actions: th.Tensor, log_std: th.Tensor) -> "Laplacian":
        self.distribution = Laplace(mean_actions, log_std.exp())  # type: ignore[assignment]
        return self


def test_another_density_does_not_share_the_kl() -> None:
    laplacian = Laplacian(1).proba_distribution(th.zeros(2, 1), th.zeros(2, 1))
    with pytest.raises(MissingKLError, match="for the action distribution Laplacian"):
        divergence(laplacian, laplacian)


@pytest.mark.parametrize(
    "base", [*(cls for cls in _REGISTRY if cls is not Uniform), SquashedStateGaussianDistribution, HybridDistribution]
)
def test_a_class_inherits_a_kl_while_it_inherits_the_density(base: type[Distribution]) -> None:
    plain: Any = object.__new__(type("Plain", (base,), {}))
    other: Any = object.__new__(type("Truncated", (base,), {"log_prob": lambda self, actions: 0 * actions}))
    with suppress(AttributeError):  # That of a product reads its parts.
        assert divergences_of(plain) in [_REGISTRY.get(cls) for cls in base.__mro__]
    with pytest.raises(MissingKLError, match=r"register_kl\(Truncated, parameters, formula\)"):
        divergences_of(other)


def test_a_kl_that_is_not_summed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_later(monkeypatch)
    register_kl(Uniform, lambda d: (d.distribution.probs,), lambda old, new: old[0] - new[0])
    old = Uniform(2).proba_distribution(th.tensor(np.zeros((5, 2))))
    with pytest.raises(ValueError, match=r"Uniform has the shape \(5, 2\); allowed: \(5,\)"):
        divergence(old, old)
