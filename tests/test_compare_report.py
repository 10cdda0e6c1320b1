"""What a report says, against numbers worked by hand."""

import base64
import gzip
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock
from rliable import metrics

from sb3_ppo_variants.benchmark.__main__ import main
from sb3_ppo_variants.benchmark.compare import paper, plots, records, scores, statistics
from sb3_ppo_variants.benchmark.compare.paper import Estimate, parse
from sb3_ppo_variants.benchmark.compare.plan import RANDOM
from sb3_ppo_variants.benchmark.compare.summary import summary
from sb3_ppo_variants.recipes.episodes import Episodes

CONDITIONS: dict[str, Any] = {
    "preset": None, "timesteps": 100, "entry": None, "file": None, "parameters": {}, "normalize": None, "anneal": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    monkeypatch.setattr(statistics, "PROFILE_REPETITIONS", 50)


def record(label: str, env: str, seed: int, score: float | None, **changes: Any) -> Any:
    return {
        "format": records.FORMAT, "name": f"{label}-{env}-{seed}", "label": label, "algorithm": "module:Class",
        "env": env, "seed": seed, "timesteps": 100, "hyperparameters": {}, "conditions": CONDITIONS,
        "status": "finished", "score": score, "steps": 100, "last_returns": [score] * 3, "curve": [score] * 100,
        "episodes": {"ends": [50, 70, 100], "returns": [score] * 3}, "versions": {"numpy": "2"},
        "machine": "Linux", "wall_seconds": 2.0, "cpu_seconds": 1.0, **changes,
    }  # fmt: skip


# Random policies score 10 and -50. The best runs score 110 and -10, so that the spans are 100 and 40.
SCORES = {
    ("sb3_ppo", "A-v0"): [60, 110],  # 0.5, 1
    ("sb3_ppo", "B-v0"): [-30, -10],  # 0.5, 1
    ("ppo_clip", "A-v0"): [85, 35],  # 0.75, 0.25
    ("ppo_clip", "B-v0"): [-20, -60],  # 0.75, -0.25
}
RECORDS = [
    record(RANDOM, "A-v0", 0, 10),
    record(RANDOM, "B-v0", 0, -50),
    *(record(label, env, seed, score) for (label, env), of in SCORES.items() for seed, score in enumerate(of)),
]


def write(folder: Path, found: list[records.Record]) -> None:
    (folder / "records").mkdir(parents=True)
    for each in found:
        records.Writer(folder / "records").write(each)


def text_of(report: Path) -> str:
    """A report without the spaces that make its tables' columns even."""
    return re.sub(r" +", " ", report.read_text())


def table_of(found: list[records.Record]) -> pd.DataFrame:
    (comparison,) = scores.comparisons(found)
    return scores.table(comparison)


def test_normalised_scores() -> None:
    frame = table_of(RECORDS)
    found = frame.groupby(["label", "env"])["normalised"].apply(list).to_dict()
    assert found == {
        ("sb3_ppo", "A-v0"): [0.5, 1.0],
        ("sb3_ppo", "B-v0"): [0.5, 1.0],
        ("ppo_clip", "A-v0"): [0.75, 0.25],
        ("ppo_clip", "B-v0"): [0.75, -0.25],
    }
    assert list(frame["steps_per_second"].unique()) == [50.0]


def test_nothing_is_scaled_without_a_better_run_or_a_random_policy() -> None:
    worse = [record(RANDOM, "A-v0", 0, 10), record("ppo_clip", "A-v0", 0, 5), record("ppo_clip", "B-v0", 0, 5)]
    assert table_of(worse)["normalised"].isna().all()


def test_only_seeds_with_a_run_everywhere_count() -> None:
    missing = [each for each in RECORDS if (each["label"], each["env"], each["seed"]) != ("ppo_clip", "B-v0", 0)]
    found, incomplete = scores.matrices(table_of(missing))
    assert incomplete == []
    np.testing.assert_allclose(found["ppo_clip"], [[0.25, -0.25]])
    assert found["sb3_ppo"].shape == (2, 2)
    without = [each for each in RECORDS if (each["label"], each["env"]) != ("ppo_clip", "B-v0")]
    assert scores.matrices(table_of(without))[1] == ["ppo_clip"]


def test_aggregates() -> None:
    found, _ = scores.matrices(table_of(RECORDS))
    arrays = {label: matrix.to_numpy() for label, matrix in found.items()}
    aggregates = statistics.aggregates(arrays)
    assert aggregates["sb3_ppo"]["mean"].value == 0.75
    # The middle two of -0.25, 0.25, 0.75, 0.75.
    assert aggregates["ppo_clip"]["IQM"].value == 0.5
    assert aggregates["ppo_clip"]["optimality gap"].value == 1 - 1.5 / 4
    compared = statistics.against(arrays, "sb3_ppo")
    assert list(compared) == ["ppo_clip"]
    # In each environment 1 of 4 pairs is better.
    assert compared["ppo_clip"]["P(better)"].value == 0.25
    assert compared["ppo_clip"]["IQM difference"].value == -0.25
    assert statistics.aggregates(arrays) == aggregates
    assert statistics.against({"ppo_clip": arrays["ppo_clip"]}, "sb3_ppo") == {}


@pytest.mark.parametrize("seeds", [(2, 2), (3, 5)])
def test_the_probability_of_improvement_is_rliables(seeds: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    own, other = (generator.integers(0, 4, (number, 3)) for number in seeds)
    expected = metrics.probability_of_improvement(own, other)
    assert statistics.probability_of_improvement(own, other) == pytest.approx(expected)


def test_rank_correlation() -> None:
    # Of 6 pairs, 5 are in the same order.
    assert paper.rank_correlation([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx((5 - 1) / 6)


def estimate(value: float, half: float = 0.05) -> Estimate:
    return Estimate(value, value - half, value + half)


def test_the_papers_table_is_beside_ours() -> None:
    labels = {row.name: row.label for row in paper.TABLE_1}
    ours = {
        labels["no clipping or penalty"]: estimate(0.40),
        labels["clipping, ε = 0.2"]: estimate(0.50),
        labels["adaptive KL, d_targ = 0.01"]: estimate(0.60),
        labels["fixed KL, β = 1"]: estimate(0.52),
        "sb3_ppo": estimate(0.30),
    }
    lines = [re.sub(r" +", " ", line) for line in paper.beside(ours)]
    assert "| clipping, ε = 0.2 | 0.82 | 0.50 (0.45 to 0.55) |" in lines
    assert "| clipping, ε = 0.1 | 0.76 | not run |" in lines
    # Of the 6 pairs of -0.39, 0.82, 0.74, 0.71, two are in another order.
    assert "Kendall's tau between the columns, over 4 settings: 0.33." in lines
    text = "\n".join(lines)
    assert "no clipping or penalty is the worst: no; sb3_ppo is lower" in text
    assert "clipping, ε = 0.2 is not beaten beyond its CI: no; adaptive KL, d_targ = 0.01 is above" in text
    assert text.count("in the paper clipping, ε = 0.2 is above") == 2
    assert "here 0.50 (0.45 to 0.55) is below 0.52 (0.47 to 0.57), the CIs overlap" in text
    assert "is below 0.60 (0.55 to 0.65), the CIs overlap" in text


def test_the_papers_column() -> None:
    column = [-0.39, 0.76, 0.82, 0.70, 0.68, 0.74, 0.71, 0.62, 0.71, 0.72, 0.69]
    assert [row.score for row in paper.TABLE_1] == column
    assert len({parse(row.setting).label for row in paper.TABLE_1}) == 11


def test_the_report_is_made_of_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = record("ppo_clip", "B-v0", 2, None, status="failed", error="Traceback\nValueError: no")
    write(tmp_path, [*RECORDS, failed])
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "one.json").write_text("{}")
    with FileLock(tmp_path / ".lock"):
        assert main(["report", "--out", str(tmp_path)]) == 0
    assert "report.html" in capsys.readouterr().out
    text = text_of(tmp_path / "report.md")
    assert "1 run is being made now" in text
    assert "- runs: 8 finished, 1 failed (2 settings, 2 environments, 3 seeds)" in text
    assert "| random policy | 10 | -50 |" in text
    assert "| ppo_clip | 60 ± 35.36 (2) | -40 ± 28.28 (2) |" in text
    assert "| sb3_ppo | 2 | 0.75 (" in text
    assert "ValueError: no" in text
    page = (tmp_path / "report.html").read_text()
    pictures = re.findall(r'src="([^"]*)"', page)
    assert len(pictures) == 4
    assert all(base64.b64decode(source.split(",")[1]).startswith(b"\x89PNG") for source in pictures)
    assert re.search(r"<td[^>]*>60 ± 35.36 \(2\)</td>", page) and "http" not in page
    assert len(page) < 500_000
    csv = pd.read_csv(tmp_path / "scores.csv")
    assert len(csv) == 8
    assert csv[csv["label"] == "ppo_clip"]["normalised"].tolist() == [0.75, 0.25, 0.75, -0.25]


def test_a_packed_file_gives_the_same_report(tmp_path: Path) -> None:
    write(tmp_path / "runs", RECORDS)
    packed = tmp_path / "deeper" / "packed.jsonl.gz"
    assert main(["report", "--out", str(tmp_path / "runs"), "--export", str(packed)]) == 0
    first = packed.read_bytes()
    assert main(["report", "--out", str(tmp_path / "again"), "--from", str(packed)]) == 0
    for name in ("report.md", "report.html", "scores.csv"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "runs" / name).read_text()
    records.pack([record("ppo_clip", "A-v0", 0, 1, format=99)], packed)
    assert "format 99" in records.unpack(packed)[1][0]
    records.pack(records.read(tmp_path / "runs" / "records")[0], packed)
    assert packed.read_bytes() == first


def test_one_is_not_many_and_more_than_the_preset_is_said() -> None:
    conditions = {**CONDITIONS, "preset": "paper-table1"}
    runs = [record("ppo_clip", "A-v0", seed, 1.0, conditions=conditions) for seed in range(4)]
    text = "\n".join(summary(scores.comparisons(runs)[0]))
    assert "4 instead of 3 seeds, 0 of 252 runs, 100 of 1,000,000 steps\n" in text
    assert "4 finished, 0 failed (1 setting, 1 environment, 4 seeds)\n" in text


def test_what_a_killed_command_left_is_not_running(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "one.json").write_text("{}")
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "being made now" not in text_of(tmp_path / "report.md")


def test_one_environment_does_not_spoil_the_others(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"last_returns": [], "curve": [None] * 100}
    unscaled = [
        *(record(label, "Flat-v0", seed, 20) for label in ("sb3_ppo", "ppo_clip") for seed in range(2)),
        *(record(label, "Long-v0", seed, None, **nothing) for label in ("sb3_ppo", "ppo_clip") for seed in range(2)),
        record(RANDOM, "Flat-v0", 0, 20),
        record(RANDOM, "Long-v0", 0, None, **nothing),
    ]
    write(tmp_path, [*RECORDS, *unscaled])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert "Without Flat-v0, Long-v0, where no run is better than the random policy" in text
    assert "| ppo_clip | 60 ± 35.36 (2) | -40 ± 28.28 (2) | 20 ± 0 (2) | no episode ended |" in text
    assert "| sb3_ppo | 2 | 0.75 (" in text


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    write(tmp_path, [each for each in RECORDS if each["seed"] == 0])
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "| sb3_ppo | 1 | 0.67 | 0.67 | 0.33 |" in text_of(tmp_path / "report.md")
    alone = {row.label: Estimate(row.score, math.nan, math.nan) for row in paper.TABLE_1}
    assert paper.findings(alone)[1] == "whether clipping, ε = 0.2 is beaten beyond its CI can not be said of one seed"


def test_a_run_counts_once(tmp_path: Path) -> None:
    other = record("ppo_clip", "B-v0", 1, -10)
    failed = record("sb3_ppo", "A-v0", 1, None, status="failed", error="no")
    files = [tmp_path / f"{name}.jsonl.gz" for name in ("whole", "part")]
    for file, part in zip(files, (RECORDS, [failed, other, RECORDS[2]]), strict=True):
        records.pack(part, file)
    assert main(["report", "--out", str(tmp_path), "--from", *map(str, reversed(files))]) == 0
    text = text_of(tmp_path / "report.md")
    assert "ppo_clip-B-v0-1 is there twice, with scores -10, which is used, and -60" in text
    assert len(pd.read_csv(tmp_path / "scores.csv")) == 8 and "0 failed" in text


@pytest.mark.parametrize(
    "content",
    [b"", b"text", gzip.compress(b"text" * 99)[:-9], gzip.compress(b"\xff")],
    ids=["empty", "text", "torn", "bytes"],
)
def test_a_file_that_is_no_export_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(SystemExit, match=r"^--from .*file\.gz cannot be read as a file that report --export wrote"):
        main(["report", "--out", str(tmp_path), "--from", str(tmp_path / "file.gz")])
    with pytest.raises(SystemExit, match="--from needs --out"):
        main(["report", "--from", str(tmp_path / "file.gz")])


def test_records_that_lack_something_are_not_used(tmp_path: Path) -> None:
    torn: Any = {name: value for name, value in RECORDS[2].items() if name != "curve"}
    write(tmp_path, [torn, *RECORDS[3:]])
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "not used: it lacks curve" in text_of(tmp_path / "report.md")


@pytest.mark.parametrize("options", [[], ["--from", "nowhere.jsonl.gz"]])
def test_a_report_of_nothing_is_refused(options: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^(--out|--from) .*nowhere"):
        main(["report", "--out", str(tmp_path / "nowhere"), *options])


@pytest.mark.parametrize("file", ["report.md", "pictures"])
def test_a_report_that_can_not_be_written_says_so(file: str, tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    # A folder where the report is to be, and a file where its folder is to be.
    (tmp_path / file).mkdir() if file.endswith("md") else (tmp_path / file).write_text("")
    with pytest.raises(SystemExit, match=r"the report could not be written: .*" + file):
        main(["report", "--out", str(tmp_path)])


def test_the_preset_says_which_cut_it_is(tmp_path: Path) -> None:
    conditions = {**CONDITIONS, "preset": "paper-table1", "entry": "mujoco", "normalize": True, "anneal": True}
    labels = [paper.TABLE_1[0].label, paper.TABLE_1[2].label, "sb3_ppo"]
    runs = [
        record(label, env, seed, 1.0 + seed + number, conditions=conditions, timesteps=200_000)
        for number, label in enumerate(labels)
        for env in paper.ENVS[:2]
        for seed in range(3)
    ]
    randoms = [record(RANDOM, env, 0, 0.0, conditions=conditions) for env in paper.ENVS[:2]]
    # A seed more than the preset has is not one of its runs.
    more = record(labels[0], paper.ENVS[0], 3, 1.0, conditions=conditions, timesteps=200_000)
    write(tmp_path, [*runs, *randoms, more])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    shares = "3 of 12 settings, 2 of 7 environments, 4 instead of 3 seeds, 18 of 252 runs, 200,000 of 1,000,000 steps"
    assert f"of the preset this is: {shares}" in text
    assert "- step size annealed to 0: yes" in text and "--no-normalize" in text
    assert "| no clipping or penalty | -0.39 | 0.40 (" in text


def test_other_hyperparameters_are_never_under_one_label() -> None:
    changed = record("ppo_clip", "A-v0", 2, 99, hyperparameters={"gamma": 0.5})
    (comparison,) = scores.comparisons([*RECORDS, changed])
    labels = {each["seed"]: each["label"] for each in comparison.records if each["label"].startswith("ppo_clip #")}
    assert labels[2] not in (labels[0], labels[1]) and labels[0] == labels[1]


def test_settings_look_different() -> None:
    labels = [str(number) for number in range(60)]
    colors, lines = plots.looks(labels)
    assert len({(colors[label], lines[label]) for label in labels}) == 60
    assert len(set(colors.values())) == 12


def test_a_curve_goes_on_where_no_episode_ended() -> None:
    smooth = plots.smooth([None, 1.0, None, 4.0])
    assert math.isnan(smooth[0])
    np.testing.assert_allclose(smooth[1:], [1.0, 1.0, 2.0])


def test_episodes_of_spans() -> None:
    episodes = Episodes()
    episodes.note(3, [{}, {"episode": {"r": 2.0}}])
    episodes.note(10, [{"episode": {"r": 4.0}}, {"episode": {"r": 6.0}}])
    assert [span.tolist() for span in episodes.spans(10, 2)] == [[2.0], [4.0, 6.0]]
