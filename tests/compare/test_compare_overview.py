"""What a report says first: the verdict, a table of scores, speed and KL, and what computed the runs."""

import re
from pathlib import Path
from typing import Any

import pytest
from comparing import RECORDS, record, text_of, write

from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.records import RANDOM

pytestmark = pytest.mark.usefixtures("blank_pictures")
NUMERICS = {"processor": "Xeon", "native": "AVX-512", "torch": "AVX512", "path": "native"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ["processor: Xeon; native library: AVX-512, PyTorch: AVX512 (8 runs)"]),
        ({"processor": "EPYC"}, ["processor: EPYC; native", "runs of different processors or backends are compared"]),
        ({"path": "arrays"}, ["runs of different processors or backends are compared"]),
        (None, ["not known, recorded by an earlier version (1 run)", "runs of different processors or backends"]),
    ],
)
def test_runs_of_different_numerics_are_noted(changes: dict[str, str] | None, said: list[str], tmp_path: Path) -> None:
    """One of the runs is of another processor, of another backend, or of an earlier version."""
    runs: list[Any] = [{**each, "numerics": NUMERICS, "modules": {"mine": "a1"}} for each in RECORDS]
    if changes is None:
        runs[2] = RECORDS[2]
    else:
        runs[2] = {**runs[2], "numerics": {**NUMERICS, **changes}}
    file = tmp_path / "runs.jsonl.gz"
    records.pack(runs, file)
    assert main(["report", "--from", str(file), "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert all(line in text for line in said) and "the code of mine" not in text
    assert ("different processors or backends" in text) is (changes != {})


def test_failed_runs_say_nothing_about_the_processor(tmp_path: Path) -> None:
    finished: list[Any] = [{**each, "numerics": NUMERICS} for each in RECORDS]
    write(tmp_path, [*finished, record("ppo_clip", "A-v0", 2, None, status="failed", error="no")])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert "1 failed" in text and "earlier version" not in text and "different processors" not in text


def test_runs_of_different_code_of_the_user_are_noted(tmp_path: Path) -> None:
    runs: list[Any] = [{**each, "modules": {"mine": "b2" if each["seed"] else "a1"}} for each in RECORDS]
    write(tmp_path, runs)
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "- the code of mine is not the same in all of these runs" in text_of(tmp_path / "report.md")


def test_one_environment_has_one_aggregate(tmp_path: Path) -> None:
    """Six seeds of two settings, of which one has no run below any of the other."""
    runs = [record("ppo_clip", "A-v0", seed, 90 + seed, training={"kl": [0.01, 0.02]}) for seed in range(6)]
    runs += [
        record("sb3_ppo", "A-v0", seed, 40 + seed, wall_seconds=4.0, training={"approx_kl": [0.03, None]})
        for seed in range(6)
    ]
    write(tmp_path, [record(RANDOM, "A-v0", 0, 10), *runs])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert not any(each in text for each in ("IQM", "interquartile", "median of", "optimality gap"))
    assert "**ppo_clip** has the highest mean score, 0.97, and is better than all others beyond noise." in text
    # 82.5 / 85; 50 and 25 steps a second; the scores lie between 90 and 95.
    first = re.search(r"\| ppo_clip \| 6 \| 1 \| 0\.97 \(0\.\d\d to 1\.\d\d\) \| 1 \| 0 \| (.*) \|\n", text)
    assert first and first[1] == "92.5 ± 1.871 (6) | 50 (2.0 x) | 0.015 (0.01 to 0.02)"
    assert "| 42.5 ± 1.871 (6) | 25 (1.0 x) | about 0.03 (0.03 to 0.03) |" in text
    assert text.index("| ppo_clip | 6 |") < text.index("- runs: 12 finished")


def test_speeds_are_compared_in_the_environments_of_both(tmp_path: Path) -> None:
    """100 steps take the baseline 2 s in A and 1 s in B, and the others 0.5 s in B and in C."""
    seconds = {("sb3_ppo", "A-v0"): 2.0, ("sb3_ppo", "B-v0"): 1.0, ("ppo_clip", "B-v0"): 0.5, ("trpo", "C-v0"): 0.5}
    runs = [record(label, env, 0, 100, wall_seconds=taken) for (label, env), taken in seconds.items()]
    write(tmp_path, [record(RANDOM, env, 0, 0) for env in ("A-v0", "B-v0", "C-v0")] + runs)
    assert main(["report", "--out", str(tmp_path)]) == 0
    first = text_of(tmp_path / "report.md").partition("| setting |")[2].partition("\n\n")[0]
    assert all(cell in first for cell in ("| 75 (1.0 x)", "| 200 (2.0 x)", "| 200 |"))


def test_the_baseline_and_a_setting_that_is_equivalent(tmp_path: Path) -> None:
    scores = {"sb3_ppo": [99, 100, 101, 100, 98], "ppo_clip": [100, 99, 101, 98, 100], "trpo": [30, 90, 50, 95, 60]}
    runs = [record(label, "A-v0", seed, score) for label, of in scores.items() for seed, score in enumerate(of)]
    write(tmp_path, [record(RANDOM, "A-v0", 0, 0), *runs])
    assert main(["report", "--out", str(tmp_path)]) == 0
    table = text_of(tmp_path / "report.md").partition("Against sb3_ppo (5 seeds)")[2].partition("\n\n![")[0]
    assert re.search(r"\| ppo_clip \| 5 \| 0\.50 \(.*\) \| 0\.00 \(-0\.0\d to 0\.0\d\) \| 1 \| yes \|", table)
    assert re.search(r"\| trpo \| 5 \| 0\.00 \(0\.\d\d to 0\.\d\d\) \| .* \| not shown \|", table)
