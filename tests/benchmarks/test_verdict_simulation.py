"""The simulation of how often reports are wrong: a small one, and the committed one against its bars."""

import json
from pathlib import Path

import pytest
from committed import ROOT

from benchmarks import verdicts
from benchmarks.__main__ import main
from sb3_ppo_variants.compare.statistics import seeds_needed

SHARES = json.loads((ROOT / "results" / "verdicts.json").read_text())


def test_settings_that_are_the_same_are_rarely_told_apart() -> None:
    """Three standard errors above 5% in 1000 cases are 7.1%."""
    assert SHARES["cases"] == 1000
    kinds = {(each["settings"], each["seeds"], each["envs"]): each["wrong"] for each in SHARES["told apart"]}
    assert kinds.keys() == {(k, n, e) for k in (2, 5, 12) for n in (3, 5, 10) for e in (1, 3, 7)}
    assert max(kinds.values()) < 0.071 and sum(kinds.values()) / len(kinds) < 0.05
    # With too few seeds for the number of pairs, nothing can be called different.
    few = [wrong for (k, n, e), wrong in kinds.items() if n < seeds_needed(k * (k - 1) // 2, e)]
    assert few and not any(few)


def test_intervals_that_are_shown_cover() -> None:
    """The bar is 90%; two standard errors in 1000 cases are 1.9%."""
    shown = [each[name] for each in SHARES["covered"] for name in verdicts.SHOWN if each[name] is not None]
    assert len(shown) > 110 and min(shown) > 0.881
    assert {each["kind"] for each in SHARES["covered"]} == {"normal", "skewed", "heavy-tailed"}
    # This is why reports do not show percentile intervals.
    three = [each for each in SHARES["covered"] if (each["seeds"], each["envs"]) == (3, 1)]
    assert max(each["percentile"] for each in three) < 0.8


def test_settings_a_margin_apart_are_rarely_called_equivalent() -> None:
    assert max(each["1"] for each in SHARES["equivalent"]) < 0.071


def test_the_page_has_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts", "--report", str(ROOT / "results" / "verdicts.json")]) == 0
    page = (ROOT / "docs" / "reports" / "verdicts.md").read_text()
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 4 and all(table in page for table in tables)


def test_a_small_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SETTINGS": (2,), "SEEDS": (3,), "ENVS": (1,), "SEEDS_COVERED": (3, 4), "SEEDS_OF_BOTH": ((2, 2),)}
    for name, values in sizes.items():
        monkeypatch.setattr(verdicts, name, values)
    assert main(["verdicts", "--cases", "20", "--json", str(tmp_path / "shares.json")]) == 0
    shares = json.loads((tmp_path / "shares.json").read_text())
    # Three runs against three cannot differ beyond noise.
    assert shares["told apart"] == [{"settings": 2, "seeds": 3, "envs": 1, "wrong": 0.0, "power": {"1": 0.0, "2": 0.0}}]
    assert shares["by spread"] == [
        {"seeds": 2, "of wider": 2, "envs": 1, "normal": 0.0, "skewed": 0.0, "heavy-tailed": 0.0}
    ]
    assert len(shares["covered"]) == 6
    assert all((each["mean"] is None) is (each["seeds"] == 3) for each in shares["covered"])


def test_large_differences_are_found() -> None:
    """Ten standard deviations apart, five seeds of each give the smallest p value of all, 2 / 252."""
    assert verdicts.found(2, 5, 1, 10, 9) == (0.0, 1.0)
