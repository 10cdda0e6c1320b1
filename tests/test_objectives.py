"""Objectives against numbers worked out by hand, and their derivatives against finite differences and autograd."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch as th

from helpers import ACTION_SPACES, BOX, noise_envs, small
from sb3_ppo_variants import (
    ArgumentError,
    ArrayObjective,
    Batch,
    Gradient,
    Objective,
    PPOClip,
    PPOCustom,
    ValueLoss,
    check_gradient,
)
from sb3_ppo_variants.losses import check_loss
from sb3_ppo_variants.objectives import (
    AdaptiveKL,
    Clipped,
    DualClip,
    KLPenalized,
    Unclipped,
    gradient_of,
    has_gradient,
    has_term,
)

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


def test_the_penalty_of_the_next_update() -> None:
    # d = 0.05 is more than 1.5 times 0.03.
    adapted = AdaptiveKL(kl_coef=2.0, desired_kl=0.03, clip_range=0.2).after_update(0.05)
    assert adapted == AdaptiveKL(kl_coef=4.0, desired_kl=0.03, clip_range=0.2)


def test_what_is_logged() -> None:
    assert Unclipped().coefficients() == {}
    assert Clipped(0.2).coefficients() == {"clip_range": 0.2}
    assert AdaptiveKL(kl_coef=2.0, desired_kl=0.03).coefficients() == {"kl_coef": 2.0}
    assert KLPenalized(kl_coef=2.0, clip_range=0.2).coefficients() == {"kl_coef": 2.0, "clip_range": 0.2}


def test_the_slopes_of_clipping() -> None:
    # The minimum is the unclipped term for 0.5, 1 and 2 (A < 0), the clipped one for 1.5.
    log_ratio = RATIO.log().requires_grad_()
    Clipped(0.2).loss(Batch(log_ratio.exp(), ADVANTAGES)).backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([-0.5 / 4, 1.0 / 4, 0.0, 2.0 / 4])


Wrong = Callable[[Gradient], Gradient]


@dataclass(frozen=True, kw_only=True)
class Penalized(ArrayObjective):
    """Equation 8 of the paper, with a gradient by hand that may be wrong."""

    needs_kl = True
    wrong: Wrong | None = None

    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        return KLPenalized(kl_coef=1.0).loss(batch)

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        losses, n = -batch.ratio * batch.advantages, len(batch.ratio)
        gradient = Gradient(losses + batch.kl, losses / n, np.full(n, 1 / n))
        return self.wrong(gradient) if self.wrong else gradient


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mean of losses", lambda g: g._replace(losses=g.losses + 1e-3)),
        ("d_log_ratio", lambda g: g._replace(d_log_ratio=g.d_log_ratio * 1.001)),
        ("d_kl", lambda g: g._replace(d_kl=None)),
    ],
)
def test_a_wrong_gradient_is_found(name: str, wrong: Wrong) -> None:
    check_gradient(Penalized())
    with pytest.raises(AssertionError, match=f"{name} is not that of the loss"):
        check_gradient(Penalized(wrong=wrong))


@dataclass(frozen=True, kw_only=True)
class DualClipped(ArrayObjective):
    """Clips r A at c A where A < 0, as in https://arxiv.org/abs/1912.09729, eq. 5.

    :param in_gradient: the bound in the gradient, which is infinite if the gradient forgets it
    """

    bound: float
    in_gradient: float

    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        return DualClip(0.2, self.bound).loss(batch)

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        r, a = batch.ratio, batch.advantages
        flat = np.where(a < 0, (r < 0.8) | (r > self.in_gradient), r > 1.2)
        losses = -np.where(a < 0, np.maximum(a * np.maximum(r, 0.8), a * self.bound), a * np.minimum(r, 1.2))
        return Gradient(losses, np.where(flat, 0.0, -a * r / len(r)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bound", [1.5, 3.0, 5.0, 100.0, 350.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_forgotten_branch_is_found(bound: float, seed: int) -> None:
    check_gradient(DualClipped(bound=bound, in_gradient=bound), seed)
    with pytest.raises(AssertionError, match=r"d_log_ratio is not that of the loss: at r = .*, A = -"):
        check_gradient(DualClipped(bound=bound, in_gradient=np.inf), seed)


@pytest.mark.parametrize("bound", [1.5, 3.0, 350.0])
def test_a_branch_at_another_ratio_is_found(bound: float) -> None:
    with pytest.raises(AssertionError, match="d_log_ratio is not that of the loss: at r = "):
        check_gradient(DualClipped(bound=bound, in_gradient=bound * (1 + 1e-7)))


@dataclass(frozen=True)
class Hinged(ArrayObjective):
    """Has a penalty |A| max(r, 2 - r), whose derivative jumps at r = 1."""

    at_one: float

    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        r, a = batch.ratio, batch.advantages
        return (-r * a + a.abs() * th.max(r, 2 - r)).mean()

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        r, a = batch.ratio, batch.advantages
        slope = np.where(r == 1, self.at_one, np.sign(r - 1)) * np.abs(a)
        return Gradient(-r * a + np.abs(a) * np.maximum(r, 2 - r), (-a + slope) * r / len(r))


def test_a_kink_where_each_update_begins() -> None:
    check_gradient(Hinged(0.0))
    message = (
        r"gradient\(\) returns d_log_ratio = 2 at r = 1, A = -1, where each update begins, but autograd returns 1\. "
        r"The loss has a kink there, with derivatives 0 and 2 on its sides\. Return 1 where r == 1, or the two paths"
    )
    with pytest.raises(AssertionError, match=message):
        check_gradient(Hinged(1.0))


@dataclass(frozen=True)
class PenalisedBeyond(ArrayObjective):
    """Penalises the KL beyond a threshold.

    :param forgets: whether the gradient penalises all of it
    """

    needs_kl = True
    forgets: bool

    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        return (-batch.ratio * batch.advantages + (batch.kl - 0.1).clamp(min=0)).mean()

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        losses = -batch.ratio * batch.advantages
        d_kl = np.ones_like(losses) if self.forgets else (batch.kl > 0.1) * 1.0
        return Gradient(losses + np.maximum(batch.kl - 0.1, 0), losses / len(losses), d_kl / len(losses))


def test_a_forgotten_branch_of_the_kl_is_found() -> None:
    check_gradient(PenalisedBeyond(forgets=False))
    with pytest.raises(AssertionError, match=r"d_kl is not that of the loss: at r = .*, KL = 0, it is"):
        check_gradient(PenalisedBeyond(forgets=True))


@dataclass(frozen=True)
class Misshapen(ArrayObjective):
    """Returns the surrogate of a minibatch in a shape that training does not take.

    :param part: what has the wrong shape
    """

    part: str

    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        losses = -batch.advantages * batch.ratio
        return losses.mean(dim=0, keepdim=True) if self.part == "loss" else losses.mean()

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        losses = -batch.advantages * batch.ratio
        derivatives = losses / len(losses)
        if self.part == "d_kl":
            return Gradient(losses, derivatives, np.zeros_like(losses))
        return Gradient(losses.mean() if self.part == "losses" else losses, derivatives)


MISSHAPEN = {
    "loss": r"Misshapen.loss returned a tensor of shape \(1,\); allowed: a scalar",
    "losses": r"Misshapen.gradient returned losses of shape \(\); allowed: an array of shape \(\d+,\), one number per",
    "d_kl": r"Misshapen.gradient returned a d_kl, but needs_kl is False: set needs_kl = True in its class",
}


@pytest.mark.parametrize("part", MISSHAPEN)
def test_shapes_are_checked(part: str) -> None:
    with pytest.raises(ArgumentError, match=MISSHAPEN[part]):
        check_gradient(Misshapen(part))
    envs = noise_envs(ACTION_SPACES["Discrete"])
    settings: dict[str, Any] = {"n_steps": 8, "batch_size": 16, "device": "cpu", "fast": part != "loss"}
    model = PPOCustom("MlpPolicy", envs, objective=Misshapen(part), **settings)
    with pytest.raises(ArgumentError, match=MISSHAPEN[part]):
        model.learn(16)


@dataclass(frozen=True)
class Returning(ArrayObjective):
    """Returns the same whatever the minibatch is."""

    returned: Any

    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        return self.returned

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        return self.returned


@dataclass(frozen=True)
class ReadsTensors(Misshapen):
    """Reads a field that batches of arrays do not have, although its class says that it needs the KL."""

    needs_kl = True

    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        getattr(batch, self.part)
        raise AssertionError


@pytest.mark.parametrize("part", ["parameters", "jensen_shannon"])
def test_fields_that_arrays_do_not_have(part: str) -> None:
    model = small(PPOCustom, noise_envs(BOX), objective=ReadsTensors(part), fast=True)
    with pytest.raises(
        RuntimeError, match=rf"batch.{part}, which .* gradient\(\) has kl, reverse_kl and old_parameters"
    ):
        model.learn(64)


@pytest.mark.parametrize("returned", [None, 0.5, np.float32(0.5), (th.tensor(0.5),)])
def test_a_loss_is_a_tensor(returned: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^Returning.loss returned .*; allowed: a scalar tensor"):
        check_loss(Returning(returned).loss(Batch(RATIO, ADVANTAGES)), Returning(returned), "policy")


class Detached(Objective):
    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        return -(batch.ratio.detach() * batch.advantages).mean()


class OfTheOldPolicy(Objective):
    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
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


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (None, "None; allowed: a Gradient"),
        (np.zeros(2), r"array\(\[0., 0.\]\); allowed: a Gradient"),
        ((np.zeros(2), None), r"d_log_ratio = None; allowed: an array of shape \(2,\)"),
        ((None, np.zeros(2)), r"losses = None; allowed: an array of shape \(2,\)"),
        ((np.zeros(2), th.zeros(2)), r"d_log_ratio = tensor\(\[0., 0.\]\); allowed: an array of shape \(2,\)"),
    ],
)
def test_a_gradient_consists_of_arrays(returned: Any, found: str) -> None:
    with pytest.raises(ArgumentError, match=f"^Returning.gradient returned {found}"):
        gradient_of(Returning(returned), Batch(np.ones(2), np.ones(2)))


def test_an_objective_that_reads_the_kl_says_so() -> None:
    with pytest.raises(RuntimeError, match="set needs_kl = True"):
        KLPenalized(kl_coef=1.0).loss(Batch(RATIO, ADVANTAGES))


class OtherLoss(Penalized):
    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        return -batch.ratio.mean()


class OtherGradient(OtherLoss):
    def gradient(self, batch: Batch[np.ndarray]) -> Gradient:
        return Gradient(-batch.ratio, -batch.ratio / len(batch.ratio))


class OtherClipped(Clipped):
    def loss(self, batch: Batch[th.Tensor]) -> th.Tensor:
        return -batch.ratio.mean()


def test_a_gradient_and_a_term_of_another_loss_are_not_inherited() -> None:
    assert has_gradient(Penalized()) and has_gradient(OtherGradient()) and not has_gradient(OtherLoss())
    assert has_term(Clipped(0.2)) and has_term(AdaptiveKL(kl_coef=1.0, desired_kl=0.01))
    assert not has_term(OtherClipped(0.2)) and not has_term(Penalized())


@pytest.mark.parametrize("objective", [OtherLoss(), Clipped(0.2)])
def test_there_is_no_gradient_to_compare(objective: Any) -> None:
    with pytest.raises(ArgumentError, match=r"has no gradient to compare with its loss: implement gradient\(\)"):
        check_gradient(objective)
