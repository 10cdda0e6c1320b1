"""Objectives against numbers worked out by hand, and their derivatives against finite differences and autograd."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch as th

from helpers import BOX, collect, noise_envs, small
from sb3_ppo_variants import ArgumentError, Batch, Objective, PPOClip, PPOCustom, ValueLoss
from sb3_ppo_variants.losses import check_loss
from sb3_ppo_variants.objectives import Clipped, KLPenalized, Unclipped

RATIO = th.tensor([0.5, 1.0, 1.5, 2.0])
ADVANTAGES = th.tensor([1.0, -1.0, 1.0, -1.0])
KL = th.tensor([0.1, 0.2, 0.3, 0.4])
BATCH = Batch(RATIO, ADVANTAGES, KL)


def test_unclipped() -> None:
    # r A = 0.5, -1, 1.5, -2
    assert Unclipped().loss(BATCH).item() == pytest.approx(0.25)


def test_clipped() -> None:
    # clip(r) A = 0.8, -1, 1.2, -1.2; the smaller of the two: 0.5, -1, 1.2, -2
    assert Clipped(0.2).loss(BATCH).item() == pytest.approx(0.325)


def test_kl_penalty() -> None:
    assert KLPenalized(kl_coef=2.0).loss(BATCH).item() == pytest.approx(0.25 + 2 * 0.25)


def test_kl_penalty_in_addition_to_clipping() -> None:
    assert KLPenalized(kl_coef=2.0, clip_range=0.2).loss(BATCH).item() == pytest.approx(0.325 + 2 * 0.25)


def test_the_slopes_of_clipping() -> None:
    # The minimum is the unclipped term for 0.5, 1 and 2 (A < 0), the clipped one for 1.5.
    log_ratio = RATIO.log().requires_grad_()
    Clipped(0.2).loss(Batch(log_ratio.exp(), ADVANTAGES)).backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([-0.5 / 4, 1.0 / 4, 0.0, 2.0 / 4])


@dataclass(frozen=True)
class Returning(Objective):
    """Returns the same whatever the minibatch is."""

    returned: Any

    def loss(self, batch: Batch) -> th.Tensor:
        return self.returned


@pytest.mark.parametrize("fast", [False, True])
def test_a_loss_is_a_scalar(fast: bool) -> None:
    class PerSample(Objective):
        def loss(self, batch: Batch) -> th.Tensor:
            return -batch.ratio

    model = collect(small(PPOCustom, objective=PerSample(), fast=fast))
    with pytest.raises(ArgumentError, match=r"PerSample.loss returned a tensor of shape \(16,\); allowed: a scalar"):
        model.train()


@pytest.mark.parametrize("returned", [None, 0.5, np.float32(0.5), (th.tensor(0.5),)])
def test_a_loss_is_a_tensor(returned: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^Returning.loss returned .*; allowed: a scalar tensor"):
        check_loss(Returning(returned).loss(Batch(RATIO, ADVANTAGES)), Returning(returned), "policy")


class Detached(Objective):
    def loss(self, batch: Batch) -> th.Tensor:
        return -(batch.ratio.detach() * batch.advantages).mean()


class OfTheOldPolicy(Objective):
    def loss(self, batch: Batch) -> th.Tensor:
        return -(batch.old_log_prob.exp() * batch.advantages).mean()


class Constant(ValueLoss):
    def loss(self, values: th.Tensor, old_values: th.Tensor, returns: th.Tensor) -> th.Tensor:
        return (old_values - returns).square().mean()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("objective", [Detached, OfTheOldPolicy])
def test_a_loss_that_trains_nothing(objective: type[Objective], fast: bool) -> None:
    model = PPOCustom("MlpPolicy", noise_envs(BOX), n_steps=32, objective=objective(), fast=fast, device="cpu")
    with pytest.raises(ArgumentError, match=f"^{objective.__name__}.loss does not depend on the policy"):
        model.learn(32)


@pytest.mark.parametrize("fast", [False, True])
def test_a_value_loss_that_trains_nothing(fast: bool) -> None:
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=32, value_loss=Constant(), fast=fast, device="cpu")
    with pytest.raises(ArgumentError, match=r"^Constant\.loss does not depend on the values"):
        model.learn(32)
