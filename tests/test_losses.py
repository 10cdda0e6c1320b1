"""Losses against numbers worked out by hand, and their derivatives against finite differences."""

from collections.abc import Callable
from math import log

import pytest
import torch as th

from sb3_ppo_variants import ClippedError, SquaredError, losses

VALUES, OLD_VALUES, RETURNS = th.tensor([1.0, 2.0, 3.0]), th.tensor([0.0, 2.0, 5.0]), th.tensor([2.0, 0.0, 4.0])


def test_value_loss() -> None:
    # Squared errors: 1, 4, 1
    assert SquaredError().loss(VALUES, OLD_VALUES, RETURNS).item() == pytest.approx(2.0)


def test_clipped_value_loss_takes_the_larger_error() -> None:
    # Clipped values: 0.5, 2, 4.5; their squared errors: 2.25, 4, 0.25
    loss = ClippedError(0.5).loss(VALUES, OLD_VALUES, RETURNS)
    assert loss.item() == pytest.approx((2.25 + 4 + 1) / 3)


def test_clipped_value_loss_has_no_gradient_beyond_the_range_towards_the_return() -> None:
    values = VALUES.clone().requires_grad_()
    ClippedError(0.5).loss(values, OLD_VALUES, RETURNS).backward()
    # The second value has not changed; the third has moved too far, past its return.
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.0, 2 * 2 / 3, 2 * -1 / 3])


def test_entropy_loss() -> None:
    log_prob = th.tensor([-1.0, -4.0])
    assert losses.entropy_loss(th.tensor([1.0, 3.0]), log_prob).item() == -2.0
    assert losses.entropy_loss(None, log_prob).item() == -2.5


def test_approximate_kl() -> None:
    # r - 1 - log r = 0 for r = 1 and 1 - log 2 for r = 2
    assert losses.approximate_kl(th.tensor([0.0, log(2)])).item() == pytest.approx((1 - log(2)) / 2)


def test_clip_fraction() -> None:
    assert losses.clip_fraction(th.tensor([0.5, 1.0, 1.1, 1.3]), 0.2).item() == 0.5


def test_normalized_advantages() -> None:
    # Mean 4, sample standard deviation 2
    assert losses.normalize_advantages(th.tensor([2.0, 4.0, 6.0])).tolist() == pytest.approx([-1.0, 0.0, 1.0])


def test_one_advantage_is_not_normalized() -> None:
    assert losses.normalize_advantages(th.tensor([3.0])).tolist() == [3.0]


@pytest.mark.parametrize(
    "loss",
    [lambda r, a: ClippedError(0.7).loss(r, th.zeros_like(r), a), lambda r, a: losses.approximate_kl(r)],
    ids=["value", "approximate_kl"],
)
def test_gradient_is_the_numerical_derivative(loss: Callable[[th.Tensor, th.Tensor], th.Tensor]) -> None:
    ratio = (th.rand(50, dtype=th.float64) * 2).requires_grad_()
    advantages = th.randn(50, dtype=th.float64)
    assert th.autograd.gradcheck(lambda r: loss(r, advantages), (ratio,))
