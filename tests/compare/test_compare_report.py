"""The text of a report, from records made by hand."""

import gzip
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparing import CONDITIONS, RECORDS, planned, record, text_of, write

from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import records, scores, tables
from sb3_ppo_variants.compare.records import RANDOM

pytestmark = pytest.mark.usefixtures("blank_pictures")
STUDY = str(Path(__file__).parents[2] / "benchmarks" / "comparisons" / "table1-study.yml")


@pytest.mark.parametrize(
    "given", ["ppo_clip clip_range=0.1, n_epochs=5", "ppo_clip:n_epochs=5,clip_range=0.1"], ids=["label", "setting"]
)
def test_any_setting_is_the_baseline(given: str, tmp_path: Path) -> None:
    label = "ppo_clip clip_range=0.1, n_epochs=5"
    renamed: list[Any] = [{**each, "label": label} if each["label"] == "ppo_clip" else each for each in RECORDS]
    write(tmp_path, renamed)
    assert main(["report", "--out", str(tmp_path), "--baseline", given]) == 0
    text = text_of(tmp_path / "report.md")
    # In each environment, 3 of 4 pairs are better.
    assert f"Against {label} (2 seeds)" in text and "| sb3_ppo | 2 | 0.75 | 0.38 |" in text
    assert f"| steps per second (x {label}) |" in text
    with pytest.raises(SystemExit, match="--baseline 'trpo' is not one of the recorded settings: ppo_clip clip_"):
        main(["report", "--out", str(tmp_path), "--baseline", "trpo"])


def test_a_label_that_two_settings_share_is_the_baseline_with_its_digest(tmp_path: Path) -> None:
    label = "ppo_clip clip_range=0.1 #14ce2c"
    renamed: list[Any] = [{**each, "label": label} if each["label"] == "ppo_clip" else each for each in RECORDS]
    write(tmp_path, renamed)
    assert main(["report", "--out", str(tmp_path), "--baseline", label]) == 0
    assert f"Against {label} (2 seeds)" in text_of(tmp_path / "report.md")


def test_a_comparison_without_the_baseline_says_so(tmp_path: Path) -> None:
    longer = {**CONDITIONS, "timesteps": 200}
    elsewhere = [record(RANDOM, "A-v0", 0, 10, conditions=longer, name="random")]
    elsewhere += [record("ppo_unclipped", "A-v0", 0, score, conditions=longer) for score in (20, 30)]
    write(tmp_path, [*RECORDS, *elsewhere])
    assert main(["report", "--out", str(tmp_path), "--baseline", "ppo_clip"]) == 0
    text = text_of(tmp_path / "report.md")
    assert text.count("Against ppo_clip (") == text.count("Without ppo_clip here, nothing is compared with it.") == 1


def test_a_folder_with_records_takes_no_report_of_others(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl.gz"
    records.pack(RECORDS, file)
    write(tmp_path, RECORDS[:3])
    with pytest.raises(SystemExit, match=r"--out .* has records of its own, .* with compare --from"):
        main(["report", "--from", str(file), "--out", str(tmp_path)])


@pytest.mark.parametrize("option", [["--baseline", "ppo_clip"], ["--add", "zoo=run.csv"]])
def test_what_needs_records_says_so_if_there_are_none(option: list[str], tmp_path: Path) -> None:
    write(tmp_path, [])
    with pytest.raises(SystemExit, match="--add and --baseline need records, and there are none yet"):
        main(["report", "--out", str(tmp_path), *option])


def test_settings_with_conditions_of_their_own_are_named(tmp_path: Path) -> None:
    conditions = {**CONDITIONS, "anneal": True, "normalize": False}
    said = []
    for label in ("trpo", "trpo learning_rate=0.001", "trpo gamma=0.9, normalize=True"):
        write(tmp_path / label, [record(each, "A-v0", 0, 1, conditions=conditions) for each in ("ppo_clip", label)])
        assert main(["report", "--out", str(tmp_path / label)]) == 0
        text = text_of(tmp_path / label / "report.md")
        said += [line for line in text.splitlines() if line.startswith(("- normalised", "- step size annealed"))]
    assert said == [
        "- normalised by VecNormalize: no",
        "- step size annealed to 0: yes",
        "- normalised by VecNormalize: no",
        "- step size annealed to 0: yes; settings with a learning_rate of their own follow that",
        "- normalised by VecNormalize: no; settings with a normalize of their own follow that",
        "- step size annealed to 0: yes",
    ]


def test_hyperparameters_are_shown(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"n_steps": 64, "device": "cpu", "normalize": None}
    kinds = {"ppo_clip": {**shared, "clip_range": 0.2, "gamma": 0.9}, "sb3_ppo": {**shared, "gamma": "lin_0.9"}}
    runs: list[Any] = [{**each, "hyperparameters": kinds.get(each["label"], {})} for each in RECORDS]
    write(tmp_path, runs)
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    shown, _, rest = text.partition("<details><summary>All shared values</summary>")
    hidden, _, different = rest.partition("</details>")
    assert "| n_steps | 64 |" in shown and "| device | cpu |" not in shown and "| device | cpu |" in hidden
    assert "| setting | gamma | clip_range |" in different
    assert "| ppo_clip | 0.9 | 0.2 |" in different and "| sb3_ppo | lin_0.9 | - |" in different
    page = (tmp_path / "report.html").read_text()
    assert page.count("<details><summary>All shared values</summary>") == page.count("</details>") == 1


def test_what_is_in_records_does_not_become_code(tmp_path: Path) -> None:
    evil = "x<script>alert(1)</script>"
    renamed: list[Any] = [{**each, "label": each["label"].replace("ppo_clip", evil)} for each in RECORDS]
    write(tmp_path, renamed)
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "<script>" not in (tmp_path / "report.html").read_text()


def test_labels_and_tracebacks_are_shown_as_they_are(tmp_path: Path) -> None:
    label, error = "mod:_A_ b=*x*|[y](z)", "ValueError: no\n```\n**end**"
    renamed: list[Any] = [{**each, "label": each["label"].replace("ppo_clip", label)} for each in RECORDS]
    failed = record(label, "A-v0", 2, None, status="failed", error=error)
    write(tmp_path, [*renamed, failed, record("__B__", "A-v0", 0, 60)])
    assert main(["report", "--out", str(tmp_path), "--baseline", label]) == 0
    page = (tmp_path / "report.html").read_text()
    for shown in (f"Against {label} (", f">{label}</td>", f"<p>{label}, A-v0"):
        assert shown in page, shown
    assert f"<pre><code>{error}\n</code></pre>" in page
    assert "Without such a seed: __B__." in page and "<em>" not in page


@pytest.mark.parametrize(
    "arguments",
    [
        ["--algos", "ppo_clip", "ppo_clip:clip_range=0.1,n_epochs=5", "--envs", "CartPole-v1", "Pendulum-v1"],
        ["--algos", "ppo_clip", "--entry", "mujoco", "--no-normalize", "--anneal", "-p", "n_steps=64,gamma=0.9"],
        ["--config", "paper-table1", "--envs", "Pendulum-v1", "--protocol", "text", "--no-anneal"],
        ["--algos", "ppo_clip", "--envs", "Pendulum-v1", "--protocol", "text", "--entry", "default"],
        ["--algos", "ppo_clip", "--envs", "Pendulum-v1", "--resume-every", "64"],
    ],
)
def test_the_command_is_the_one_that_made_the_runs(arguments: list[str]) -> None:
    plan = planned([*arguments, "--seeds", "2"])
    made: list[Any] = [{**record(run.label, run.env, run.seed, 1.0), **run.identity} for run in plan.runs]
    commands = {tables.command(comparison) for comparison in scores.comparisons(made)}
    found: set[str] = set()
    for command in commands:
        assert command is not None
        found |= {run.name for run in planned(shlex.split(command)[4:]).runs if run.algorithm}
    assert found == {run.name for run in plan.runs if run.algorithm}


def test_the_entry_and_its_file_are_named(tmp_path: Path) -> None:
    write(tmp_path, [record("ppo_clip", "A-v0", 0, 1.0, conditions={**CONDITIONS, "entry": "mine", "file": "my.yml"})])
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "- hyperparameters of: mine in my.yml\n" in text_of(tmp_path / "report.md")


@pytest.mark.parametrize(("entry", "described"), [("mujoco", True), ("Hopper-v5", False)])
def test_a_protocol_is_described_only_with_the_values_that_it_describes(
    tmp_path: Path, entry: str, described: bool
) -> None:
    conditions = {**CONDITIONS, "entry": entry, "protocol": "text"}
    write(tmp_path, [record("ppo_clip", "A-v0", 0, 1.0, conditions=conditions)])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert "- protocol: text" in text
    assert ("a constant step size" in text) is described


def apart_from_sb3(seeds: int = 4) -> list[Any]:
    """Return runs in which ppo_clip is better than sb3_ppo with each seed."""
    scores = {"ppo_clip": 100, "sb3_ppo": 50}
    runs = [record(label, "A-v0", seed, score + seed) for label, score in scores.items() for seed in range(seeds)]
    return [record(RANDOM, "A-v0", 0, 10), *runs]


@pytest.mark.usefixtures("blank_pictures")
def test_a_setting_whose_runs_fail_is_not_called_better(tmp_path: Path) -> None:
    failed = record("ppo_clip", "A-v0", 4, None, status="failed", error="diverged")
    for name, runs in {"whole": apart_from_sb3(), "failed": [*apart_from_sb3(), failed]}.items():
        write(tmp_path / name, runs)
        assert main(["report", "--out", str(tmp_path / name)]) == 0
    assert "is better than all others beyond noise" in text_of(tmp_path / "whole" / "report.md")
    text = text_of(tmp_path / "failed" / "report.md")
    assert "**ppo_clip** (1 of 5 runs have no score) has the highest mean score" in text
    assert "It is not better than any other beyond noise: it cannot be told apart from sb3_ppo." in text
    assert "Settings with runs without a score are not called better" in text
    worse = record("sb3_ppo", "A-v0", 4, None, status="failed", error="diverged")
    write(tmp_path / "worse", [*apart_from_sb3(), worse])
    assert main(["report", "--out", str(tmp_path / "worse")]) == 0
    assert "is better than all others beyond noise" in text_of(tmp_path / "worse" / "report.md")


@pytest.mark.usefixtures("blank_pictures")
def test_environments_where_nothing_learns_are_named(tmp_path: Path) -> None:
    """The random policy's mean has a standard error of 2 / sqrt(4) = 1, and the best run is above it by 4 or 40."""
    for better, is_named in ((4.0, True), (40.0, False)):
        runs = [record("sb3_ppo", "A-v0", seed, 10 + better - seed) for seed in range(2)]
        random = record(RANDOM, "A-v0", 0, 10.0, last_returns=[8.0, 12.0, 8.267949, 11.732051])
        write(tmp_path / str(better), [random, *runs])
        assert main(["report", "--out", str(tmp_path / str(better))]) == 0
        text = text_of(tmp_path / str(better) / "report.md")
        assert ("In A-v0, the best run is hardly better than the random policy." in text) == is_named


@pytest.mark.usefixtures("blank_pictures")
def test_environments_where_the_random_policy_always_gets_the_same_are_named(tmp_path: Path) -> None:
    """One of three episodes was lucky, so the standard error of the best run is its advantage, 1 / 3."""
    returns = {RANDOM: [-200.0] * 3, "sb3_ppo": [-200.0, -200.0, -199.0]}
    runs = [record(label, "A-v0", 0, float(np.mean(of)), last_returns=of) for label, of in returns.items()]
    write(tmp_path, runs)
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "In A-v0, the best run is hardly better than the random policy." in text_of(tmp_path / "report.md")


def test_a_random_policy_that_failed_is_no_setting(tmp_path: Path) -> None:
    failed = record(RANDOM, "B-v0", 0, None, status="failed", error="no", timesteps=1_000_000)
    write(tmp_path, [RECORDS[0], failed, *RECORDS[2:]])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert "- runs: 8 finished, 0 failed (2 settings, 2 environments, 2 seeds)\n- steps of a run: 100\n" in text
    assert "random policy, B-v0, seed 0:\n\n```\nno\n```" in text


def test_what_a_killed_command_left_is_not_running(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "one.json").write_text("{}")
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "being made now" not in text_of(tmp_path / "report.md")


def test_seeds_are_not_missing_where_nothing_is_scaled(tmp_path: Path) -> None:
    worse = [record(label, "A-v0", seed, -5 - seed) for label in ("ppo_clip", "sb3_ppo") for seed in range(2)]
    write(tmp_path, [record(RANDOM, "A-v0", 0, 10), *worse])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert "Without A-v0, where no run beats the random policy" in text
    assert "Without such a seed" not in text


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    write(tmp_path, [each for each in RECORDS if each["seed"] == 0])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert (
        "| sb3_ppo | 1 | 1 to 2 | 0.67 | 0 |" in text and "With a single seed, nothing can be said about noise" in text
    )


def test_a_run_counts_once(tmp_path: Path) -> None:
    other = record("ppo_clip", "B-v0", 1, -10)
    failed = record("sb3_ppo", "A-v0", 1, None, status="failed", error="no")
    files = [tmp_path / f"{name}.jsonl.gz" for name in ("whole", "part")]
    for file, part in zip(files, (RECORDS, [failed, other, RECORDS[2]]), strict=True):
        records.pack(part, file)
    assert main(["report", "--out", str(tmp_path), "--from", *map(str, reversed(files))]) == 0
    text = text_of(tmp_path / "report.md")
    assert "ppo_clip-B-v0-1 occurs twice, with scores -10, which is used, and -60" in text
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
    torn: Any = {name: value for name, value in RECORDS[2].items() if name != "steps"}
    uncurved: Any = {**RECORDS[3], "episodes": None}
    write(tmp_path, [torn, uncurved, *RECORDS[4:]])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert "is ignored: it lacks steps" in text and "is ignored: it lacks trailing" in text


@pytest.mark.parametrize("options", [[], ["--from", "nowhere.jsonl.gz"]])
def test_a_report_of_nothing_is_refused(options: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^(--out|--from) .*nowhere"):
        main(["report", "--out", str(tmp_path / "nowhere"), *options])


@pytest.mark.parametrize("file", ["report.md", "pictures"])
def test_a_report_that_can_not_be_written_says_so(file: str, tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    # Put a folder in place of the report, or a file in place of a folder.
    (tmp_path / file).mkdir() if file.endswith("md") else (tmp_path / file).write_text("")
    with pytest.raises(SystemExit, match=f"the report could not be written to --out {tmp_path}: .*{file}"):
        main(["report", "--out", str(tmp_path)])


def test_records_that_can_not_be_packed_say_so(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    (tmp_path / "file").touch()
    packed = tmp_path / "file" / "runs.jsonl.gz"
    with pytest.raises(SystemExit, match=f"^--export {packed} could not be written: "):
        main(["report", "--out", str(tmp_path), "--export", str(packed)])


def failed(label: str, env: str, seed: int) -> Any:
    of_finished = ("score", "steps", "last_returns", "episodes")
    whole = record(label, env, seed, None, status="failed", error="ValueError")
    return {name: value for name, value in whole.items() if name not in of_finished}


def test_settings_and_environments_of_which_all_runs_failed(tmp_path: Path) -> None:
    lost = [failed("trpo", env, seed) for env in ("A-v0", "B-v0") for seed in range(3)]
    of_env = [failed(label, "C-v0", 0) for label in ("sb3_ppo", "ppo_clip")]
    write(tmp_path, [*RECORDS, *lost, *of_env])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert "Without C-v0, where no run beats the random policy, or the random policy or every other" in text
    assert "Without such a seed: trpo." in text
    assert "--algos ppo_clip sb3_ppo trpo --envs A-v0 B-v0 C-v0 --seeds 3" in text


def test_one_setting_beside_one_that_failed(tmp_path: Path) -> None:
    kept = [each for each in RECORDS if each["label"] != "sb3_ppo"]
    write(tmp_path, [*kept, failed("trpo", "A-v0", 0)])
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "no other setting has a seed in every environment" in text_of(tmp_path / "report.md")


def test_nothing_is_tested_without_scores(tmp_path: Path) -> None:
    write(tmp_path, [each for each in RECORDS if each["label"] != RANDOM])
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "normalised scores in every environment, so nothing is tested" in text_of(tmp_path / "report.md")


def test_whole_rollouts_that_are_far_more_than_was_asked_for(tmp_path: Path) -> None:
    def changed(of_clip: int) -> Any:
        return [{**each, "steps": of_clip} if each["label"] == "ppo_clip" else each for each in RECORDS]

    for steps, says in ((105, False), (2048, True)):
        write(tmp_path / str(steps), changed(steps))
        assert main(["report", "--out", str(tmp_path / str(steps))]) == 0
        line = "steps that were made, in whole rollouts: 2,048 (ppo_clip), 100 (sb3_ppo)"
        assert (line in text_of(tmp_path / str(steps) / "report.md")) == says
