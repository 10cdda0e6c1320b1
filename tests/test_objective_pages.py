"""What the pages about the objectives of the field say in numbers, against the objectives."""

from math import log
from pathlib import Path

import numpy as np
import pytest
import torch as th

from benchmarks.figures.field import ALL
from benchmarks.figures.ratio import by_ratio
from sb3_ppo_variants.objectives import (
    CISPO,
    DPO,
    MDPO,
    P3O,
    SAPO,
    SPO,
    TRGPPO,
    Batch,
    ClipHigher,
    Clipped,
    DualClip,
    KLHinge,
    Objective,
    ReverseKL,
    Rollback,
    TrulyPPO,
    Unclipped,
    list_objectives,
)
from sb3_ppo_variants.objectives.trust_region import line_of_outcomes, range_of_ratio

PAGES = Path(__file__).parent.parent / "docs" / "objectives"
RATIO = np.append(np.linspace(0.001, 30, 30_000), 1e4)


def slopes(objective: Objective, advantage: float, ratio: np.ndarray = RATIO) -> np.ndarray:
    """Return the derivative of the objective of each sample with respect to log r, at a KL of 0."""
    log_ratio, zeros = th.from_numpy(np.log(ratio)).requires_grad_(), th.zeros(len(ratio), dtype=th.float64)
    batch = Batch(log_ratio.exp(), zeros + advantage, zeros, log_ratio=log_ratio, reverse_kl=zeros)
    (found,) = th.autograd.grad(objective.loss(batch), log_ratio)
    return -len(ratio) * found.numpy()


def text(page: str) -> str:
    return (PAGES / f"{page}.md").read_text()


def rows() -> dict[str, list[str]]:
    """Return the cells of the overview by the name of the class."""
    table = text("index").partition("## Overview")[2].partition("## Measured")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| [`")]
    return {row[0].partition("`")[2].partition("`")[0]: row for row in cells}


def test_the_overview_has_every_objective_and_nothing_else() -> None:
    assert rows().keys() | {"EWMA"} == list_objectives().keys() | {"EWMA"}
    assert all(len(row) == 5 for row in rows().values())


@pytest.mark.parametrize(
    ("objective", "bounds"),
    [
        (Clipped(0.2), (1.2, None)),
        (ClipHigher(0.2, 0.28), (1.28, None)),
        (DualClip(0.2, 3.0), (1.2, 3.0)),
        (CISPO(0.28), (1.28, 1.28)),
        (P3O(4.0, 0.1), (1.06, 1.06)),
        (SAPO(1.0, 1.0), (1.57, 1.57)),
        (DPO(), (1.57, None)),
        *((objective, (None, None)) for objective in (Unclipped(), Rollback(), TrulyPPO(), SPO(), KLHinge())),
        *((objective, (None, None)) for objective in (ReverseKL(), MDPO())),
    ],
    ids=repr,
)
def test_where_the_gradient_is_bounded(objective: Objective, bounds: tuple[float | None, float | None]) -> None:
    for advantage, bound in zip((1.0, -1.0), bounds, strict=True):
        greatest = np.abs(slopes(objective, advantage)).max()
        assert greatest > 1000 if bound is None else greatest == pytest.approx(bound, abs=0.005)
    said = rows()[type(objective).__name__][-1]
    assert said.startswith("no") == (bounds == (None, None)) and said.startswith("where A > 0") == (
        None not in bounds[:1] and bounds[1] is None
    )
    # The bounds that are given as numbers.
    assert all(f"{bound}" in said for bound in bounds if bound in (1.06, 1.57))


def test_how_fast_the_gradient_of_spo_grows() -> None:
    # (A - |A| (r - 1) / eps) r is about -5 r^2 for large r; at r = 0, it is (1 + 1 / 0.2) r.
    assert slopes(SPO(0.2), 1.0, np.array([1e4])) == pytest.approx(-5e8, rel=1e-3)
    assert slopes(SPO(0.2), 1.0, np.array([1e-6])) == pytest.approx(6e-6, rel=1e-3)


@pytest.mark.parametrize(("label", "objective"), ALL.items(), ids=ALL)
def test_all_objectives_have_the_same_slope_at_the_old_policy(label: str, objective: Objective) -> None:
    for advantage in (1.0, -1.0):
        assert by_ratio(objective, np.ones(1), advantage)[1] == pytest.approx(advantage)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("label", [label for label in ALL if label != "CISPO"])
def test_drawn_slopes_are_numerical_derivatives(label: str) -> None:
    """All but that of CISPO, whose weight has no gradient. At a few points, there are kinks."""
    ratio = np.linspace(0.1, 3.6, 1751)
    for advantage in (1.0, -1.0):
        values, found = by_ratio(ALL[label], ratio, advantage, old_prob=0.249)
        close = np.isclose(np.gradient(values, np.log(ratio)), found, rtol=1e-2, atol=1e-2)
        assert close[2:-2].mean() > 0.99


def test_the_reverse_kl_is_that_of_two_actions() -> None:
    # KL of (3/4, 1/4) from (1/2, 1/2); r A = 3/2
    (value,), _ = by_ratio(ReverseKL(2.0), np.array([1.5]), 1.0)
    assert value == pytest.approx(1.5 - 2 * (0.75 * log(1.5) + 0.25 * log(0.5)))


def test_where_the_sign_changes_in_dpo() -> None:
    ratio = np.linspace(0.001, 0.999, 9981)
    for advantage, expected in ((-0.5, "0.41"), (-1.0, "0.56"), (-2.0, "0.70")):
        assert f"{ratio[slopes(DPO(), advantage, ratio) < 0][0]:.2f}" == expected
        assert f"r = {expected}$" in text("dpo")


def test_dpo_closes_as_the_gate_of_sapo() -> None:
    ratio = np.linspace(1, 5, 81)
    for advantage in (0.5, 1.0, 3.0):
        gate = SAPO(tau_pos=2 * advantage / 2.0)
        assert slopes(DPO(alpha=2.0), advantage, ratio) == pytest.approx(slopes(gate, advantage, ratio))


def test_the_weights_of_the_gates() -> None:
    far = np.array([3.0])
    weights = [slopes(objective, 1.0, far).item() / 3 for objective in (SAPO(), P3O())]
    assert [f"{weight:.2g}" for weight in weights] == ["0.42", "0.0013"]
    assert "that of SAPO is 0.42, and that of P3O 0.001" in text("gates")


@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_where_the_gate_does_not_exceed_the_ratio(tau: float) -> None:
    ratio = np.linspace(0, 3, 301)
    values = np.array([-SAPO(tau_pos=tau).loss(Batch(r[None], th.ones(1))).item() for r in th.from_numpy(ratio)])
    assert np.all(values[ratio >= 1] <= ratio[ratio >= 1]) and values[0] > 0


def test_where_rollback_and_hinge_begin() -> None:
    # KL of two equally likely actions = -1/2 log(1 - (r - 1)^2)
    for kl, low, high in ((0.03, 0.76, 1.24), (0.02, 0.80, 1.20)):
        beyond = np.sqrt(1 - np.exp(-2 * kl))
        assert (round(1 - beyond, 2), round(1 + beyond, 2)) == (low, high)
    ratio = np.linspace(1.01, 1.5, 491)
    jump = np.abs(np.diff(by_ratio(TrulyPPO(), ratio, 1.0)[1])).argmax()
    assert ratio[jump] == pytest.approx(1.24, abs=0.005) and "$r = 1.24$" in text("rollback")


def test_ranges_by_the_old_probability() -> None:
    least, greatest = range_of_ratio(line_of_outcomes(np.array([[0.5], [0.01]])), 0.01)
    assert (round(least[0], 2), round(greatest[0], 2), round(greatest[1], 1)) == (0.86, 1.14, 3.1)
    assert "fall to $r = 0.86$ or rise to 1.14" in text("trgppo") and "0.01 may rise to 3.1" in text("trgppo")


def test_the_drawn_range_of_trgppo_is_not_that_of_the_clip() -> None:
    # p r = 0.466 has the KL 0.1 from p = 0.249: -0.249 log(0.466 / 0.249) - 0.751 log(0.534 / 0.751) = 0.1
    assert TRGPPO(delta=0.1) in ALL.values()
    ratio = np.linspace(1, 2, 501)
    stops = ratio[by_ratio(TRGPPO(delta=0.1), ratio, 1.0, 0.249)[1] == 0][0]
    assert stops * 0.249 == pytest.approx(0.466, abs=0.001)
