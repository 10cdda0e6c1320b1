"""The figures of the pages about the objectives: their data against numbers worked out by hand."""

import re
from itertools import pairwise
from math import log, sqrt
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.figures import bandit, estimators
from benchmarks.figures.command import FIGURES
from benchmarks.figures.ratio import by_ratio
from benchmarks.figures.rollout import Moved
from benchmarks.figures.tasks import ALGORITHMS
from sb3_ppo_variants.objectives import Clipped, KLPenalized, Objective, Unclipped

ROOT = Path(__file__).parents[2]
RATIO = np.linspace(0.05, 1.95, 1901)


@pytest.mark.parametrize(("advantage", "kink"), [(1.0, 1.2), (-1.0, 0.8)])
def test_the_clipped_objective_has_its_kink_at_the_bound(advantage: float, kink: float) -> None:
    values, slopes = by_ratio(Clipped(0.2), RATIO, advantage)
    bend = np.abs(np.diff(values, 2)).argmax() + 1
    assert RATIO[bend] == pytest.approx(kink, abs=1e-9)
    flat = advantage * (RATIO - kink) > 1e-9
    assert np.allclose(values[flat], kink * advantage) and not slopes[flat].any()
    assert np.allclose(values[~flat], advantage * RATIO[~flat])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("objective", [Unclipped(), KLPenalized(kl_coef=1.0), KLPenalized(kl_coef=3.0)], ids=repr)
def test_drawn_slopes_are_numerical_derivatives(objective: Objective, advantage: float) -> None:
    values, slopes = by_ratio(objective, RATIO, advantage)
    assert np.allclose(np.gradient(values, np.log(RATIO))[5:-5], slopes[5:-5], rtol=1e-3, atol=2e-3)


# u = (-beta + sqrt(beta^2 + 4)) / 2, p = (1 + u) / 2 and KL = -1/2 log(1 - u^2), rounded: the table of fixed_kl.md.
@pytest.mark.parametrize(
    ("beta", "prob", "kl"), [(0.3, 0.931, 0.677), (1, 0.809, 0.241), (3, 0.651, 0.048), (10, 0.550, 0.005)]
)
def test_where_a_penalised_update_ends(beta: float, prob: float, kl: float) -> None:
    found = bandit.update(KLPenalized(kl_coef=beta), 0.5)
    assert found == pytest.approx((1 + (-beta + sqrt(beta**2 + 4)) / 2) / 2, abs=1e-3)
    assert (found, bandit.kl(0.5, found)) == pytest.approx((prob, kl), abs=1e-3)
    assert f"| {beta} | " in page("fixed_kl") and f"| {prob:.3f} | {kl:.3f} |" in page("fixed_kl")


def test_clipped_updates_multiply_the_probability_by_the_bound() -> None:
    # Each update ends at most one small step beyond the bound.
    probs = bandit.learn(Clipped(0.2), 3)
    for before, after in pairwise(probs):
        assert 1.2 * before <= after < 1.2 * before + 0.012


def test_estimates_of_the_kl() -> None:
    # r = 2: -log 2, (log 2)^2 / 2 and 1 - log 2
    found = estimators.estimates(Moved(np.array([log(2)]), np.array([0.25]), np.zeros(1)))
    values = {name: float(value[0]) for name, value in found.items()}
    assert values == pytest.approx({"exact": 0.25, "k1": -log(2), "k2": log(2) ** 2 / 2, "k3": 1 - log(2)})


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", [name for name in FIGURES if not name.startswith("bandit")])
def test_a_figure_is_drawn_from_what_is_committed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["figures", "--only", name, "--out", str(tmp_path)]) == 0
    picture = tmp_path / f"{name}.svg"
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert picture.read_bytes() == (ROOT / "docs" / "objectives" / "pictures" / f"{name}.svg").read_bytes()


def test_the_marks_of_figure_3_are_those_of_the_table() -> None:
    table = (ROOT / "docs" / "results" / "index.md").read_text().partition("| environment | PPO (clip) | TRPO |")[2]
    found = [re.findall(r"\((-?\d+)\)", line) for line in table.splitlines()[2:9]]
    assert [[float(end) for end in ends] for ends in found] == [
        [*ends] for ends in zip(*(ends for _, ends in ALGORITHMS.values() if ends), strict=True)
    ]


def page(name: str) -> str:
    return (ROOT / "docs" / "objectives" / f"{name}.md").read_text()
