"""The exact KL and entropy of masked distributions, against closed forms worked out by hand and Monte Carlo."""

from math import log
from typing import Any

import pytest
import torch as th
from sb3_contrib.common.maskable.distributions import (
    MaskableBernoulliDistribution,
    MaskableCategorical,
    MaskableCategoricalDistribution,
    MaskableDistribution,
    MaskableMultiCategoricalDistribution,
)

from sb3_ppo_variants.kl import divergences_of


def masked(distribution: Any, logits: list[float] | th.Tensor, masks: list[int]) -> Any:
    distribution.proba_distribution(action_logits=th.as_tensor(logits)[None])
    distribution.apply_masking(th.tensor([masks], dtype=th.bool))
    return distribution


def divergence(old: MaskableDistribution, new: MaskableDistribution) -> th.Tensor:
    divergences = divergences_of(new)
    return divergences.kl(divergences.parameters(old), divergences.parameters(new))


def logs(*numbers: float) -> list[float]:
    return [log(number) for number in numbers]


def test_a_masked_action_contributes_nothing() -> None:
    masks = [1, 0, 1, 0]
    old = masked(MaskableCategoricalDistribution(4), logs(1, 7, 3, 0.1), masks)  # 1/4 and 3/4
    new = masked(MaskableCategoricalDistribution(4), logs(2, 0.3, 2, 50), masks)  # 1/2 and 1/2
    expected = 0.25 * log(0.25 / 0.5) + 0.75 * log(0.75 / 0.5)
    assert divergence(old, new).item() == pytest.approx(expected, rel=1e-6)
    assert new.entropy().item() == pytest.approx(log(2), rel=1e-6)
    assert old.entropy().item() == pytest.approx(0.25 * log(4) + 0.75 * log(4 / 3), rel=1e-6)


def test_a_single_allowed_action_leaves_no_choice() -> None:
    old = masked(MaskableCategoricalDistribution(3), [1.0, -2.0, 30.0], [0, 1, 0])
    new = masked(MaskableCategoricalDistribution(3), [-50.0, 9.0, 0.0], [0, 1, 0])
    assert divergence(old, new).item() == 0.0
    assert new.entropy().item() == 0.0


def test_multi_categorical_is_summed_over_dimensions() -> None:
    masks = [1, 1, 0, 1, 0, 1]
    old = masked(MaskableMultiCategoricalDistribution([3, 3]), logs(1, 3, 5, 1, 9, 1), masks)
    new = masked(MaskableMultiCategoricalDistribution([3, 3]), logs(1, 1, 7, 1, 2, 4), masks)
    first = 0.25 * log(0.25 / 0.5) + 0.75 * log(0.75 / 0.5)
    second = 0.5 * log(0.5 / 0.2) + 0.5 * log(0.5 / 0.8)
    assert divergence(old, new).item() == pytest.approx(first + second, rel=1e-6)


def test_bernoulli_is_summed_over_dimensions() -> None:
    masks = [1, 1, 0, 1]  # The second coin must show 1.
    old = masked(MaskableBernoulliDistribution(2), logs(1, 3, 1, 1), masks)
    new = masked(MaskableBernoulliDistribution(2), logs(1, 1, 5, 1), masks)
    expected = 0.25 * log(0.25 / 0.5) + 0.75 * log(0.75 / 0.5)
    assert divergence(old, new).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("make", [MaskableMultiCategoricalDistribution, MaskableBernoulliDistribution])
def test_monte_carlo(make: Any) -> None:
    masks = [1, 0, 1, 1, 1, 1]
    sizes: Any = [2, 2, 2] if make is MaskableMultiCategoricalDistribution else 3
    old = masked(make(sizes), th.randn(6), masks)
    new = masked(make(sizes), th.randn(6), masks)
    n = 100_000
    for distribution in (old, new):
        many = [MaskableCategorical(logits=part.logits.expand(n, -1)) for part in distribution.distributions]
        distribution.distributions, distribution.one = many, distribution.distributions
    actions = old.sample()
    estimates = old.log_prob(actions) - new.log_prob(actions)
    error = estimates.std() / n**0.5
    for distribution in (old, new):
        distribution.distributions = distribution.one
    assert abs(divergence(old, new).item() - estimates.mean().item()) < 4 * error
    assert divergence(old, new).item() > 0.01


@pytest.mark.parametrize("scale", [1e-30, 1.0, 100.0])
def test_no_logits_make_it_nan(scale: float) -> None:
    old = masked(MaskableCategoricalDistribution(4), th.randn(4) * scale, [1, 0, 1, 1])
    logits = (th.randn(4) * scale).requires_grad_()
    kl = divergence(old, masked(MaskableCategoricalDistribution(4), logits, [1, 0, 1, 1]))
    kl.sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert kl.item() >= -1e-6
