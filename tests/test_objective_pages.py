"""What the pages about the objectives of the field say in numbers, against the objectives."""

from pathlib import Path

import numpy as np
import pytest
import torch as th

from benchmarks.figures.field import ALL
from benchmarks.figures.ratio import by_ratio
from sb3_ppo_variants.objectives import Batch, Objective, list_objectives

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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("label", [label for label in ALL if label != "CISPO"])
def test_drawn_slopes_are_numerical_derivatives(label: str) -> None:
    """All but that of CISPO, whose weight has no gradient. At a few points, there are kinks."""
    ratio = np.linspace(0.1, 3.6, 1751)
    for advantage in (1.0, -1.0):
        values, found = by_ratio(ALL[label], ratio, advantage, old_prob=0.249)
        close = np.isclose(np.gradient(values, np.log(ratio)), found, rtol=1e-2, atol=1e-2)
        assert close[2:-2].mean() > 0.99
