"""The appendix for a paper: numbers worked out by hand, LaTeX that compiles, and power against simulated runs."""

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import CONDITIONS, RECORDS, record, write

from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import statistics
from sb3_ppo_variants.compare.records import RANDOM

ODD = "ppo_clip a_b=50%, c={1}, d='~$x^2\\#&'"
ESCAPED = r"ppo\_clip a\_b=50\%, c=\{1\}, d='\textasciitilde{}\$x\textasciicircum{}2\textbackslash{}\#\&'"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


@pytest.mark.usefixtures("blank_pictures")
def test_by_hand(tmp_path: Path) -> None:
    """Normalised, sb3_ppo has 0.5, 1 and 0.5, 1, and ppo_clip 0.75, 0.25 and 0.75, -0.25, as in comparing.py."""
    runs: list[Any] = [{**each, "hyperparameters": {"gamma": 0.9, "policy": "MlpPolicy"}} for each in RECORDS]
    write(tmp_path, runs)
    assert main(["report", "--out", str(tmp_path), "--appendix"]) == 0
    text = (tmp_path / "appendix/appendix.tex").read_text()
    assert r"sb3\_ppo & 2 & 0.75 &" in text and r"ppo\_clip & 2 & 0.38 &" in text
    # In each environment, one of four pairs has the better ppo_clip.
    assert r"Against sb3\_ppo:" in text and r"ppo\_clip & 2 & 0.25 & -0.38 &" in text
    assert r"random policy & 10 & -50 \\" in text and r"sb3\_ppo & 85 $\pm$ 35.36 (2) & -20 $\pm$ 14.14 (2) \\" in text
    assert "We trained 2 settings in 2 environments with 2 seeds each, for 100 environment steps" in text
    assert r"for the single pair of settings" in text and r"gamma & 0.9 \\" in text
    # The variances are 0.125 and 0.125 for sb3_ppo, 0.125 and 0.5 for ppo_clip.
    [found] = json.loads((tmp_path / "appendix/findings.json").read_text(), parse_constant=_refuse)
    assert found["settings"]["ppo_clip"] == {
        "mean": {"value": 0.375, "low": None, "high": None}, "seeds": 2, "rank": "1 to 2", "better_than": [],
        "worse_than": [],
    }  # fmt: skip
    assert found["random_policy"] == {"A-v0": 10, "B-v0": -50} and len(found["runs"]) == 8
    assert {(pair["setting"], pair["difference"]["value"]) for pair in found["pairs"]} == {
        ("sb3_ppo", 0.375), ("ppo_clip", -0.375),
    }  # fmt: skip
    # If the first runs sum to s in A and t in B, the means differ by (s - 1.25 + t - 1) / 2. Of the 6 x 6 ways, it is
    # 0.375 or more in 2 + 2 with s - 1.25 = 0.25 or -0.25, in 3 + 3 with 0.5 or -0.5, and in 2 + 2 with 0.
    assert found["pairs"][0]["p"] == found["pairs"][1]["p"] == pytest.approx(14 / 36)


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(("seeds", "pairs"), [(2, "all 3 pairs"), (1, "the single pair")])
def test_settings_with_a_single_seed_are_in_no_test(seeds: int, pairs: str, tmp_path: Path) -> None:
    write(tmp_path, [*RECORDS, *(record("trpo", env, seed, 30) for env in ("A-v0", "B-v0") for seed in range(seeds))])
    assert main(["report", "--out", str(tmp_path), "--appendix"]) == 0
    text = (tmp_path / "appendix/appendix.tex").read_text()
    assert f"for {pairs} of settings with several seeds" in " ".join(text.split())


@pytest.mark.usefixtures("blank_pictures")
def test_missing_scores_are_empty_cells(tmp_path: Path) -> None:
    write(tmp_path, [*RECORDS, record("trpo", "A-v0", 0, 30)])
    assert main(["report", "--out", str(tmp_path), "--appendix"]) == 0
    assert r"trpo & 30 (1) &  \\" in (tmp_path / "appendix/appendix.tex").read_text()


@pytest.mark.usefixtures("blank_pictures")
def test_only_where_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "appendix").exists()


@pytest.mark.usefixtures("blank_pictures")
def test_a_single_run_without_scale_or_hyperparameters(tmp_path: Path) -> None:
    write(tmp_path, [record(ODD, "A-v0", 0, None, last_returns=[], conditions={**CONDITIONS, "timesteps": 7})])
    assert main(["report", "--out", str(tmp_path), "--appendix"]) == 0
    text = (tmp_path / "appendix/appendix.tex").read_text()
    assert ESCAPED + r" & no episode ended \\" in text and "permutation" not in text
    [found] = json.loads((tmp_path / "appendix/findings.json").read_text(), parse_constant=_refuse)
    assert (found["settings"], found["pairs"], found["runs"][0]["score"]) == ({}, [], None)


@pytest.mark.parametrize("seeds", [5, 10])
def test_a_detectable_difference_is_detected_in_four_of_five_comparisons(seeds: int) -> None:
    """The permutation test at the strictest of Holm's levels for six pairs, on 600 pairs of simulated settings."""
    generator, spread = np.random.default_rng(seeds), np.array([0.1, 0.3, 0.05])
    known = {label: generator.normal(scale=spread, size=(2_000, 3)) for label in "abcd"}
    by = statistics.detectable_difference(known, seeds)
    draw = lambda: generator.normal(scale=spread, size=(seeds, 3))  # noqa: E731
    found = (statistics.p_values([(draw() + by, draw()) for _ in range(600)]) <= 0.05 / 6).mean()
    # The standard error of the share is 0.016; with few seeds, the t test's degrees of freedom are cautious.
    assert 0.75 < found < 0.95


def test_nothing_is_detectable_without_seeds_that_can_tell() -> None:
    scores = {label: np.random.default_rng(0).normal(size=(3, 1)) for label in "ab"}
    assert math.isnan(statistics.detectable_difference(scores, 3))
    assert statistics.detectable_difference(scores, 10) > statistics.detectable_difference(scores, 20) > 0
    assert math.isnan(statistics.detectable_difference({"a": scores["a"]}, 10))
    assert math.isnan(statistics.detectable_difference({label: np.ones((3, 1)) for label in "ab"}, 10))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None or shutil.which("bibtex") is None, reason="needs TeX Live")
def test_it_compiles(tmp_path: Path) -> None:
    runs: list[Any] = [
        {
            **each,
            "label": ODD if each["label"] == "ppo_clip" else each["label"],
            "hyperparameters": {"gamma": each["seed"], "env_wrapper": "a_b.c" * 40},
        }
        for each in RECORDS
    ]
    write(tmp_path, runs)
    assert main(["report", "--out", str(tmp_path), "--appendix"]) == 0
    folder = tmp_path / "appendix"
    for program in ["pdflatex", "bibtex", "pdflatex", "pdflatex"]:
        options = ["-interaction=nonstopmode", "-halt-on-error"] if program == "pdflatex" else []
        subprocess.run([program, *options, "appendix"], cwd=folder, check=True, capture_output=True, timeout=120)
    log = (folder / "appendix.log").read_text(errors="replace")
    assert "undefined" not in log and "Overfull" not in log
    for figure in folder.glob("*.pdf"):
        # TrueType fonts inside of the files, as journals ask for.
        assert b"/FontFile2" in figure.read_bytes() or figure.name == "appendix.pdf"
    assert RANDOM in (folder / "appendix.tex").read_text()
