"""The objectives of the field against numbers worked out by hand from the equations of their papers."""

from collections.abc import Callable
from math import inf, log, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from resuming import assert_exact, pendulums

from helpers import ACTION_SPACES, LogRecorder, collect, flat_weights, named, noise_envs, small, update
from sb3_ppo_variants import ArgumentError, Batch, Objective, PPOCustom
from sb3_ppo_variants.limits import RatioDeviation
from sb3_ppo_variants.objectives import (
    CISPO,
    DPO,
    ESPO,
    EWMA,
    MDPO,
    P3O,
    SAPO,
    SPO,
    TRGPPO,
    AdaptiveReverseKL,
    ClipHigher,
    DualClip,
    KLHinge,
    ReverseKL,
    Rollback,
    TrulyPPO,
)

RATIO = [0.5, 1.0, 1.5, 2.0]
ADVANTAGES = [1.0, -1.0, 1.0, -1.0]
KL, REVERSE_KL = [0.1, 0.2, 0.3, 0.4], [0.2, 0.1, 0.4, 0.3]
# The objective, its value for each sample with these advantages, and with the opposite ones.
BY_HAND: list[tuple[Objective, list[float], list[float]]] = [
    # The least of r A and clip(r, 0.8, 1.28) A.
    (ClipHigher(0.2, 0.28), [0.5, -1, 1.28, -2], [-0.8, 1, -1.5, 1.28]),
    # The least of r A and clip(r, 0.8, 1.2) A, but not less than -1.75 where A = -1.
    (DualClip(0.2, 1.75), [0.5, -1, 1.2, -1.75], [-0.8, 1, -1.5, 1.2]),
    # min(r, 1.28) A log r, and with a lower bound of 0.8.
    (
        CISPO(0.28),
        [0.5 * log(0.5), 0, 1.28 * log(1.5), -1.28 * log(2)],
        [-0.5 * log(0.5), 0, -1.28 * log(1.5), 1.28 * log(2)],
    ),
    (
        CISPO(0.28, 0.2),
        [0.8 * log(0.5), 0, 1.28 * log(1.5), -1.28 * log(2)],
        [-0.8 * log(0.5), 0, -1.28 * log(1.5), 1.28 * log(2)],
    ),
    # Beyond the range: F(0.5) = -0.15 + 1.3 * 0.8 = 0.89, F(1.5) = -0.45 + 1.3 * 1.2 = 1.11, F(2) = -0.6 + 1.56 = 0.96.
    (Rollback(0.2, 0.3), [0.5, -1, 1.11, -2], [-0.89, 1, -1.5, 0.96]),
    # The KL is at least 0.25 in the last two, and r A > A in one of them: 1.5 - 2 * 0.3, or 2 - 2 * 0.4.
    (TrulyPPO(0.25, 2.0), [0.5, -1, 0.9, -2], [-0.5, 1, -1.5, 1.2]),
    # (r - 1)^2 / 0.4 = 0.625, 0, 0.625, 2.5.
    (SPO(0.2), [0.5 - 0.625, -1, 1.5 - 0.625, -2 - 2.5], [-0.5 - 0.625, 1, -1.5 - 0.625, 2 - 2.5]),
    # sigmoid(4 (r - 1)) = sigmoid(-2), 1/2, sigmoid(2), sigmoid(4), minus 0.1 KL.
    (
        P3O(4.0, 0.1),
        [0.1192029 - 0.01, -0.5 - 0.02, 0.8807971 - 0.03, -0.9820138 - 0.04],
        [-0.1192029 - 0.01, 0.5 - 0.02, -0.8807971 - 0.03, 0.9820138 - 0.04],
    ),
    # A > 0: 4 sigmoid(r - 1), with sigmoid(-0.5) = 0.3775407; A < 0: 2 sigmoid(2 (r - 1)), with sigmoid(1) = 0.7310586.
    (
        SAPO(1.0, 2.0),
        [4 * 0.3775407, -1, 4 * 0.6224593, -2 * 0.8807971],
        [-2 * 0.2689414, 2, -2 * 0.7310586, 4 * 0.7310586],
    ),
    # A = 1, r = 1.5: f = 0.5 - 2 tanh(0.25) = 0.0101627; r = 2: f = 1 - 2 tanh(0.5) = 0.0757657. A = -1, r = 0.5:
    # f = log 2 - 0.6 tanh(log 2 / 0.6), and log 2 = 0.6931472, whose tanh(... / 0.6) is 0.8194847. Elsewhere f = 0.
    (DPO(2.0, 0.6), [0.5, -1, 1.5 - 0.0101627, -2], [-0.5 - 0.2014564, 1, -1.5, 2 - 0.0757657]),
    # The mean KL 0.25 is 0.05 above twice 0.1: r A - 2 KL - 100 * 0.0025.
    (
        KLHinge(0.1, 2.0, 100.0),
        [0.5 - 0.2 - 0.25, -1 - 0.4 - 0.25, 1.5 - 0.6 - 0.25, -2 - 0.8 - 0.25],
        [-0.5 - 0.2 - 0.25, 1 - 0.4 - 0.25, -1.5 - 0.6 - 0.25, 2 - 0.8 - 0.25],
    ),
    # It is less than twice 0.2.
    (KLHinge(0.2, 2.0, 100.0), [0.5 - 0.2, -1 - 0.4, 1.5 - 0.6, -2 - 0.8], [-0.5 - 0.2, 1 - 0.4, -1.5 - 0.6, 2 - 0.8]),
    # r A - 2 KL(new || old).
    (ReverseKL(2.0), [0.5 - 0.4, -1 - 0.2, 1.5 - 0.8, -2 - 0.6], [-0.5 - 0.4, 1 - 0.2, -1.5 - 0.8, 2 - 0.6]),
    (AdaptiveReverseKL(2.0), [0.5 - 0.4, -1 - 0.2, 1.5 - 0.8, -2 - 0.6], [-0.5 - 0.4, 1 - 0.2, -1.5 - 0.8, 2 - 0.6]),
    # r A, whatever delta is.
    (ESPO(0.1), [0.5, -1, 1.5, -2], [-0.5, 1, -1.5, 2]),
    (MDPO(0.5), [0.5 - 0.4, -1 - 0.2, 1.5 - 0.8, -2 - 0.6], [-0.5 - 0.4, 1 - 0.2, -1.5 - 0.8, 2 - 0.6]),
]
OBJECTIVES: list[Any] = [*(objective for objective, *_ in BY_HAND), TRGPPO()]


def known(objective: Objective, advantages: list[float]) -> dict[str, list[float]]:
    """Return what a batch has for an objective."""
    of_states = {"kl": KL, "reverse_kl": REVERSE_KL} if objective.needs_kl else {}
    return {"ratio": RATIO, "advantages": advantages, **of_states}


@pytest.mark.parametrize(("objective", "values", "opposite"), BY_HAND, ids=named)
def test_by_hand(objective: Objective, values: list[float], opposite: list[float]) -> None:
    for advantages, expected in ((ADVANTAGES, values), ([-a for a in ADVANTAGES], opposite)):
        given = known(objective, advantages)
        tensors: Any = {name: th.tensor(numbers, dtype=th.float64) for name, numbers in given.items()}
        assert objective.loss(Batch(**tensors)).item() == pytest.approx(-np.mean(expected), rel=1e-6)


@pytest.mark.parametrize("fast", [False, True])
def test_espo_ends_an_update(fast: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def updates(objective: Objective, **arguments: Any) -> Any:
        model = collect(small(PPOCustom, objective=objective, learning_rate=0.03, n_epochs=30, fast=fast, **arguments))
        model.verbose = 1
        model.train()
        return model._n_updates

    assert updates(ESPO(0.05)) < updates(ESPO(100.0)) == 30
    assert "due to reaching max ratio deviation" in capsys.readouterr().out
    # A stop of the model takes the place of the objective's.
    assert updates(ESPO(0.05), stop=RatioDeviation(100.0)) == 30


def test_the_weight_of_cispo_is_a_constant() -> None:
    """A ratio of 2 and an advantage of 3 give a slope of -1.28 * 3, and not that of a product."""
    log_ratio = th.tensor([log(2)], requires_grad=True)
    CISPO(0.28).loss(Batch(log_ratio.exp(), th.tensor([3.0]), log_ratio=log_ratio)).backward()
    assert log_ratio.grad is not None and log_ratio.grad.item() == pytest.approx(-1.28 * 3)


def test_penalties_of_later_updates() -> None:
    hinge = KLHinge(desired_kl=0.01, kl_coef=1.0)
    # 1.3 and 0.7 times the target are the bounds.
    assert hinge.after_update(0.0131) == KLHinge(0.01, 1.5)
    assert hinge.after_update(0.0129) == hinge.after_update(0.0071) == hinge
    assert hinge.after_update(0.0069).kl_coef == pytest.approx(1 / 1.5)
    reverse = AdaptiveReverseKL(kl_coef=1.0, desired_kl=0.01)
    # 1.5 times the target, and the target divided by 1.5.
    assert [reverse.after_update(kl).kl_coef for kl in (0.016, 0.014, 0.007, 0.006)] == [2.0, 1.0, 1.0, 0.5]


def test_the_step_size_of_mirror_descent() -> None:
    # A quarter of training is left: t = 0.2 + 0.8 / 4.
    assert MDPO(1.0, 0.2).at(0.25).coefficients() == pytest.approx({"step_size": 0.4, "kl_coef": 2.5})
    log = LogRecorder()
    small(PPOCustom, objective=MDPO(1.0, 0.2), n_steps=16).learn(64, callback=log)
    assert [update["train/kl_coef"] for update in log.updates] == pytest.approx([1 / 0.6, 1 / 0.2])


BAD: list[tuple[Any, str, list[Any]]] = [
    (ClipHigher, "clip_range", [-0.1, nan, inf, None, "0.2"]),
    (ClipHigher, "clip_range_high", [-0.1, None]),
    (DualClip, "c", [1.0, 0.5, inf, None]),
    (CISPO, "clip_range_high", [-0.1, inf]),
    (Rollback, "alpha", [0.0, -1.0, nan]),
    (TrulyPPO, "delta", [-0.1, nan]),
    (SPO, "clip_range", [0.0, -0.2, None]),
    (P3O, "tau", [0.0]),
    (SAPO, "tau_neg", [0.0, "1"]),
    (DPO, "beta", [0.0, inf]),
    (KLHinge, "desired_kl", [0.0]),
    (KLHinge, "kl_coef", [0.0, 1e9]),
    (ReverseKL, "kl_coef", [-1.0, nan]),
    (AdaptiveReverseKL, "desired_kl", [0.0]),
    (MDPO, "step_size", [0.0]),
    (MDPO, "final_step_size", [0.0, 1.5]),
    (ESPO, "delta", [-0.1, inf]),
    (TRGPPO, "delta", [0.0, nan]),
]


@pytest.mark.parametrize(("cls", "name", "values"), BAD, ids=named)
def test_refused(cls: Any, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ArgumentError, match=f"^{name}=.* is not allowed; allowed: "):
            cls(**{name: value})


@pytest.mark.sampled(9)
@pytest.mark.parametrize("space", ["Box", "Discrete", "MultiDiscrete", "MultiBinary"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_both_paths_take_the_same_steps(objective: Any, space: str, double_precision: Callable[[Any], None]) -> None:
    env = noise_envs(ACTION_SPACES[space])
    model = collect(small(PPOCustom, env, objective=objective, fast=False, learning_rate=3e-3, n_epochs=4))
    double_precision(model)
    reference, fast = (update(model, path) for path in (False, True))
    assert not th.equal(flat_weights(model), flat_weights(reference))
    th.testing.assert_close(flat_weights(fast), flat_weights(reference), rtol=1e-6, atol=1e-9)
    logged = reference.logger.name_to_value
    assert fast.logger.name_to_value == pytest.approx(logged, rel=1e-5, abs=1e-7)
    assert ("train/clip_fraction" in logged) == (objective.clip_range is not None)
    assert {f"train/{name}" for name in objective.coefficients()} <= logged.keys()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("objective", [EWMA(SPO(0.2)), *OBJECTIVES])
def test_resumed_exactly(objective: Any, tmp_path: Path) -> None:
    assert_exact(lambda: small(PPOCustom, pendulums(), objective=objective), pendulums, tmp_path, 160, 64, 100)
