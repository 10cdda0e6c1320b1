"""The report, from records made by hand."""

import base64
import gzip
import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparing import CONDITIONS, RECORDS, record, report_of, text_of, write
from matplotlib import pyplot
from scipy import stats

from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import plots, records, statistics
from sb3_ppo_variants.compare.records import RANDOM
from sb3_ppo_variants.compare.scores import Comparison

pytestmark = pytest.mark.usefixtures("blank_pictures")
# What a record of a failed run lacks.
FINISHED = ("score", "steps", "last_returns", "episodes")
NUMERICS = {"processor": "Xeon", "native": "AVX-512", "torch": "AVX512", "path": "native"}


@pytest.fixture
def pictures(blank_pictures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw real pictures."""
    monkeypatch.undo()


def failed(label: str, env: str, seed: int, error: str = "ValueError: no") -> Any:
    whole = record(label, env, seed, None, status="failed", error=error)
    return {name: value for name, value in whole.items() if name not in FINISHED}


@pytest.mark.usefixtures("pictures")
def test_the_report_is_made_of_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [*RECORDS, failed("ppo_clip", "B-v0", 2)])
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "report.html" in capsys.readouterr().out
    text = text_of(tmp_path / "report.md")
    assert "- timesteps: 100\n- runs: 8 finished, 1 failed (2 settings, 2 environments, 3 seeds)\n" in text
    assert "| random policy | 10 | -50 |" in text
    assert "| ppo_clip | 60 ± 35 | -40 ± 28 |" in text and "mean over 2 seeds ± standard deviation." in text
    assert "| sb3_ppo | 0.75 | 1 to 2 |" in text
    assert "ppo_clip, B-v0, seed 2:\n\n ValueError: no" in text
    page = (tmp_path / "report.html").read_text()
    shown = re.findall(r'src="([^"]*)"', page)
    # Means, sample efficiency, and learning curves of two environments.
    assert len(shown) == 4
    assert all(base64.b64decode(source.split(",")[1]).startswith(b"\x89PNG") for source in shown)
    assert re.search(r"<td[^>]*>60 ± 35</td>", page) and "http" not in page
    for suffix, begins in ((".svg", b"<?xml"), (".pdf", b"%PDF"), (".png", b"\x89PNG")):
        drawn = list((tmp_path / "pictures").glob(f"*{suffix}"))
        assert len(drawn) == 4 and all(file.read_bytes().startswith(begins) for file in drawn)
    csv = pd.read_csv(tmp_path / "scores.csv")
    assert len(csv) == 8 and csv[csv["label"] == "ppo_clip"]["normalised"].tolist() == [0.75, 0.25, 0.75, -0.25]


def test_one_environment_has_one_aggregate() -> None:
    """Six seeds of two settings, of which one has no run below any of the other."""
    slow = {"wall_seconds": 4.0, "training": {"approx_kl": [0.03, None]}}
    runs = [record("ppo_clip", "A-v0", seed, 90 + seed, training={"kl": [0.01, 0.02]}) for seed in range(6)]
    runs += [record("sb3_ppo", "A-v0", seed, 40 + seed, **slow) for seed in range(6)]
    text = report_of([record(RANDOM, "A-v0", 0, 10), *runs])
    assert "| IQM" not in text and "![What the updates logged]" in text
    assert "**ppo_clip** has the highest mean score, 0.97, and is better than all others beyond noise." in text
    # 82.5 / 85; 50 and 25 steps a second; the scores lie between 90 and 95.
    score = r"0\.\d\d \(-?\d\.\d\d to \d\.\d\d\) \| [12]"
    assert re.search(rf"\| ppo_clip \| 92.5 ± 1.9 \| {score} \| 50 \| 2.0x \| 0.015 \(0.01 to 0.02\) \|\n", text)
    assert re.search(rf"\| 42.5 ± 1.9 \| {score} \| 25 \| 1.0x \| about 0.03 \(0.03 to 0.03\) \|", text)
    assert re.search(r"\| ppo_clip \| 92.5 ± 1.9 \| 0\.97 \(0\.\d\d to 1\.\d\d\) \| 1 \| 50", text)


def test_speeds_are_compared_in_the_environments_of_both() -> None:
    """100 steps take the baseline 2 s in A and 1 s in B, and the others 0.5 s in B and in C."""
    seconds = {("sb3_ppo", "A-v0"): 2.0, ("sb3_ppo", "B-v0"): 1.0, ("ppo_clip", "B-v0"): 0.5, ("trpo", "C-v0"): 0.5}
    runs = [record(label, env, 0, 100, wall_seconds=taken) for (label, env), taken in seconds.items()]
    text = report_of([record(RANDOM, env, 0, 0) for env in ("A-v0", "B-v0", "C-v0")] + runs)
    first = text.partition("| setting |")[2].partition("\n\n")[0]
    assert all(cell in first for cell in ("| 75 | 1.0x |", "| 200 | 2.0x |", "| 200 | |"))


def test_the_baseline_and_a_setting_that_is_equivalent() -> None:
    of = {"sb3_ppo": [99, 100, 101, 100, 98], "ppo_clip": [100, 99, 101, 98, 100], "trpo": [30, 90, 50, 95, 60]}
    runs = [record(label, "A-v0", seed, score) for label, own in of.items() for seed, score in enumerate(own)]
    text = report_of([record(RANDOM, "A-v0", 0, 0), *runs])
    table = text.partition("Against sb3_ppo (5 seeds)")[2].partition("\n\n![")[0]
    near = r"0\.00 \(-0\.0\d to 0\.0\d\) \| 1 \| yes \(90% interval -0\.0\d to 0\.0\d\)"
    assert re.search(rf"\| ppo_clip \| 5 \| 0\.50 \(.*\) \| {near} \|", table)
    far = r"\| .* \| no evidence \(90% interval -.* to -.*\)"
    assert re.search(rf"\| trpo \| 5 \| 0\.00 \(0\.\d\d to 0\.\d\d\) {far} \|", table)


@pytest.mark.parametrize(
    ("label", "given"),
    [
        ("ppo_clip clip_range=0.1, n_epochs=5", "ppo_clip clip_range=0.1, n_epochs=5"),
        ("ppo_clip clip_range=0.1, n_epochs=5", "ppo_clip:n_epochs=5,clip_range=0.1"),
    ],
)
def test_any_setting_is_the_baseline(label: str, given: str) -> None:
    renamed: list[Any] = [{**each, "label": label} if each["label"] == "ppo_clip" else each for each in RECORDS]
    text = report_of(renamed, "--baseline", given)
    # In each environment, 3 of 4 pairs are better.
    assert f"Against {label} (2 seeds)" in text and "| sb3_ppo | 2 | 0.75 | 0.38 |" in text
    with pytest.raises(SystemExit, match="--baseline 'trpo' is not a recorded setting: ppo_clip clip_"):
        report_of(renamed, "--baseline", "trpo")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "computed by: processor Xeon, native AVX-512, torch AVX512, path native\n"),
        ({"processor": "EPYC"}, "computed by: processor EPYC, native"),
        ({"path": "reference"}, "path reference\n"),
        (None, "computed by: not known, in an earlier version\n"),
    ],
)
def test_runs_of_different_numerics_are_noted(changes: dict[str, str] | None, said: str) -> None:
    """One of the runs is of another processor, of another backend, or of an earlier version."""
    runs: list[Any] = [{**each, "numerics": NUMERICS} for each in RECORDS]
    runs[2] = RECORDS[2] if changes is None else {**runs[2], "numerics": {**NUMERICS, **changes}}
    text = report_of(runs)
    assert said in text and ("different processors or backends" in text) is (changes != {})


def test_hyperparameters_are_shown() -> None:
    shared: dict[str, Any] = {"n_steps": 64, "device": "cpu", "normalize": None}
    kinds = {"ppo_clip": {**shared, "clip_range": 0.2, "gamma": 0.9}, "sb3_ppo": {**shared, "gamma": "lin_0.9"}}
    runs: list[Any] = [{**each, "hyperparameters": kinds.get(each["label"], {})} for each in RECORDS]
    same, _, different = report_of(runs).partition("Different:")
    assert "| n_steps | 64 |" in same and "| device | cpu |" in same
    assert "| hyperparameter | sb3_ppo | ppo_clip |" in different or "| ppo_clip | sb3_ppo |" in different
    assert "| clip_range |" in different and "| gamma |" in different


def test_labels_and_tracebacks_are_shown_as_they_are(tmp_path: Path) -> None:
    label, error = "mod:_A_ b=*x*|[y](z)<script>", "ValueError: no\n```\n**end**"
    renamed: list[Any] = [{**each, "label": each["label"].replace("ppo_clip", label)} for each in RECORDS]
    write(tmp_path, [*renamed, failed(label, "A-v0", 2, error), record("__B__", "A-v0", 0, 60)])
    assert main(["report", "--out", str(tmp_path), "--baseline", label]) == 0
    page, shown = (tmp_path / "report.html").read_text(), label.replace("<script>", "&lt;script&gt;")
    for text in (f"Against {shown} (", f">{shown}</td>", f"<p>{shown}, A-v0", "in every environment: __B__."):
        assert text in page, text
    assert f"<pre><code>{error}\n</code></pre>" in page and page.count("<em>") == 1


@pytest.mark.parametrize(("entry", "described"), [("mujoco", True), ("Hopper-v5", False)])
def test_conditions_are_listed(entry: str, described: bool) -> None:
    """A protocol is described only with the values that it describes."""
    conditions = {**CONDITIONS, "entry": entry, "protocol": "text", "anneal": True, "normalize": False}
    text = report_of([record("ppo_clip", "A-v0", 0, 1.0, conditions=conditions)])
    assert "## A-v0, protocol text (" in text and ("a constant step size" in text) is described
    assert f"- entry: {entry}\n- normalize: False\n- anneal: True\n- protocol: text" in text


def apart_from_sb3() -> list[Any]:
    """Return runs in which ppo_clip is better than sb3_ppo with each of four seeds."""
    of = {"ppo_clip": 100, "sb3_ppo": 50}
    runs = [record(label, "A-v0", seed, score + seed) for label, score in of.items() for seed in range(4)]
    return [record(RANDOM, "A-v0", 0, 10), *runs]


def test_a_setting_whose_runs_fail_is_not_called_better() -> None:
    better = "is better than all others beyond noise"
    assert better in report_of(apart_from_sb3())
    text = report_of([*apart_from_sb3(), failed("ppo_clip", "A-v0", 4)])
    assert "**ppo_clip** (1 of 5 runs have no score) and sb3_ppo: no difference shown; equivalence not tested." in text
    assert "Settings with runs without a score are not called better" in text
    assert better in report_of([*apart_from_sb3(), failed("sb3_ppo", "A-v0", 4)])


def test_one_environment_does_not_spoil_the_others() -> None:
    """In one, no run is better than the random policy; in another, no episode ends; in the last, all runs fail."""
    nothing: dict[str, Any] = {"last_returns": [], "episodes": {"ends": [], "returns": []}}
    both = ("sb3_ppo", "ppo_clip")
    text = report_of([
        *RECORDS,
        *(record(label, "Flat-v0", seed, 20) for label in both for seed in range(2)),
        *(record(label, "Long-v0", seed, None, **nothing) for label in both for seed in range(2)),
        *(failed(label, "Z-v0", 0) for label in (*both, "trpo", RANDOM)),
        record(RANDOM, "Flat-v0", 0, 20),
        record(RANDOM, "Long-v0", 0, None, **nothing),
    ])  # fmt: skip
    assert "Without Flat-v0, Long-v0, Z-v0, where no run beats the random policy" in text
    assert "| ppo_clip | 60 ± 35 (2) | -40 ± 28 (2) | 20 ± 0 (2) | no episode ended |" in text
    assert "| sb3_ppo | 0.75 | 1 to 2 |" in text
    assert "Without a seed in every environment: trpo." in text and "random policy, Z-v0, seed 0:" in text


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([each for each in RECORDS if each["seed"] == 0], "With a single seed, nothing can be said about noise"),
        ([each for each in RECORDS if each["label"] != RANDOM], "no setting has a seed with normalised scores in"),
        ([*RECORDS[:2], *RECORDS[6:], failed("trpo", "A-v0", 0)], "no other setting has a seed in every environment"),
        ([failed("trpo", "A-v0", 0)], "## No finished run ("),
        ([], "There are no records yet."),
    ],
)
def test_what_too_few_runs_say(found: list[Any], said: str) -> None:
    assert said.casefold() in report_of(found).casefold()


def test_a_setting_with_its_own_protocol_does_not_set_the_scale() -> None:
    other = [record("sb3_ppo protocol=sb3", env, 0, score) for env, score in (("A-v0", 210), ("B-v0", 30))]
    text = report_of([*RECORDS, *other])
    assert "may be above 1: sb3_ppo protocol=sb3." in text and "| sb3_ppo protocol=sb3 | 2.00 | 1 to 3 |" in text
    alone = report_of([*RECORDS[:2], *other])
    assert "do not set this scale" not in alone and "| sb3_ppo protocol=sb3 | 1.00 | 1 |" in alone


def test_a_file_says_what_settings_are_called(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("settings: [ppo_clip, sb3_ppo]\nnames: {ppo_clip: Pull (ours), sb3_ppo: SB3}\n")
    text = report_of(RECORDS, "--config", str(file), "--names", "sb3_ppo=Stable")
    assert "**Stable** has the highest" in text and "| Pull (ours) | 60 ± 35 |" in text


FIVE = {"ppo_clip": [100, 103, 101, 107, 99], "sb3_ppo": [50, 52, 49, 58, 51], "trpo": [40, 60, 55, 48, 53]}


def test_a_paper_has_intervals_and_tests_of_each_environment(tmp_path: Path) -> None:
    """In A-v0, a setting is better than both others; in B-v0, all have the same scores."""
    runs = [record(label, "A-v0", seed, score) for label, of in FIVE.items() for seed, score in enumerate(of)]
    runs += [record(label, "B-v0", seed, seed) for label in FIVE for seed in range(5)]
    write(tmp_path, [record(RANDOM, "A-v0", 0, 10), record(RANDOM, "B-v0", 0, -9), *runs])
    assert main(["report", "--out", str(tmp_path), "--paper", "--names", "ppo_clip=Pull_1"]) == 0
    text = re.sub(r" +", " ", (tmp_path / "paper.tex").read_text())
    half = {label: stats.t.ppf(0.985, 4) * np.std(of, ddof=1) / 5**0.5 for label, of in FIVE.items()}
    same = rf"2 $\pm$ {stats.t.ppf(0.985, 4) * 2.5**0.5 / 5**0.5:.0f}"
    assert rf"Pull\_1 & \textbf{{102 $\pm$ {half['ppo_clip']:.0f}}} & {same} & \textbf{{0." in text
    assert rf"sb3\_ppo & 52 $\pm$ {half['sb3_ppo']:.0f} & {same} & 0." in text
    assert "by Holm's method" in text and "\n\\label{tab:" in text and "pictures/" in text
    frame = pd.read_csv(tmp_path / "tests.csv", index_col=["environment", "other", "setting"])
    exact = stats.permutation_test([FIVE["ppo_clip"], FIVE["trpo"]], lambda a, b: np.mean(a) - np.mean(b))
    # Holm's method multiplies the smallest of three p values by 3.
    assert frame.loc[("A-v0", "trpo", "ppo_clip"), "p"] == float(f"{3 * exact.pvalue:.2g}")
    assert frame.loc[("B-v0", "trpo", "ppo_clip"), "p"] == 1 and len(frame) == 3 * 6


def test_a_paper_of_runs_that_show_nothing(tmp_path: Path) -> None:
    write(tmp_path, [*RECORDS, record("trpo", "C-v0", 0, 5)])
    assert main(["report", "--out", str(tmp_path), "--paper"]) == 0
    text = (tmp_path / "paper.tex").read_text()
    assert "No difference is beyond noise." in text and r"\textbf" not in text
    assert r"ppo\_clip & 60 (2) & $-$40 (2) &  & 0." in text and r"trpo &  &  & 5 (1) & " in text


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
@pytest.mark.skipif(which("pdflatex") is None, reason="pdfLaTeX is not installed")
@pytest.mark.parametrize("envs", [("A-v0", "B-v0"), ("A-v0", "B-v0", "C_%-v0", "D-v0")])
def test_latex_compiles_a_paper(envs: tuple[str, ...], tmp_path: Path) -> None:
    """There are more settings than environments, and fewer."""
    runs = [record(label, env, s, of[s]) for label, of in FIVE.items() for env in envs for s in range(4)]
    write(tmp_path, [*runs, *(record(RANDOM, env, 0, 0) for env in envs)])
    name = r"β_1 & 50% of $x^2~{a}\b#|<c>"
    assert main(["report", "--out", str(tmp_path), "--paper", "--names", f"ppo_clip={name}"]) == 0
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0 and "Overfull" not in ended.stdout, ended.stdout
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")


def test_the_pictures_of_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyplot, "close", lambda _: None)
    compared = Comparison(RECORDS)
    plots.draw_probabilities(compared, tmp_path / "x.png")
    (axes,) = pyplot.gcf().axes
    # Three of four pairs are better in each environment.
    assert [text.get_text() for text in axes.texts] == ["0.75", "0.25"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["sb3_ppo  1", "ppo_clip  2"]
    plots.draw_curves(compared, [*compared.envs, "A-v0"], tmp_path / "x.png")
    grid = pyplot.gcf().axes
    assert [axes.get_title() for axes in grid] == ["A-v0", "B-v0", "A-v0", ""]
    assert [sorted(np.array(line.get_ydata())[-1] for line in axes.lines) for axes in grid[::2]] == [[10, 60, 85]] * 2
    monkeypatch.undo()
    pyplot.close("all")


def test_every_environment_has_its_own_picture(tmp_path: Path) -> None:
    envs = ["a/b-v0", "a:c-v0", "走-v0", "跳-v0"]
    write(tmp_path, [record("ppo_clip", env, 0, 1.0, name=f"run-{number}") for number, env in enumerate(envs)])
    assert main(["report", "--out", str(tmp_path)]) == 0
    files = re.findall(r"!\[Learning curves in .*\]\((.*)\)", (tmp_path / "report.md").read_text(encoding="utf-8"))
    assert len(files) == len(set(files)) == 4 and all((tmp_path / file).exists() for file in files)


def test_up_to_thirty_settings_look_different() -> None:
    looks = plots.looks(Comparison([record(f"ppo_clip clip_range={i}", "A-v0", 0, 1.0) for i in range(30)]))
    assert len({(look["color"], look["linestyle"]) for look in looks.values()}) == 30


def test_long_names_of_settings_have_several_lines() -> None:
    label = "ppo_clip " + ", ".join(f"policy_kwargs_{number}=0" for number in range(9))
    (look,) = plots.looks(Comparison([record(label, "A-v0", 0, 1.0)])).values()
    lines = look["label"].splitlines()
    assert " ".join(lines) == label and max(map(len, lines)) <= 40


def test_the_legend_is_sorted_as_the_curves_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyplot, "close", lambda _: None)
    with plots.drawing(tmp_path / "x.png") as [[axes]]:
        for name, values in {"falls": [3, 1], "stays": [2, 2], "rises": [1, 3]}.items():
            axes.plot(values, label=name)
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["rises", "stays", "falls"]
    monkeypatch.undo()
    pyplot.close(axes.figure)


@pytest.mark.parametrize(("seeds", "banded"), [(3, True), (4, True), (4, False)])
def test_a_curve_without_an_interval_has_the_range_of_the_seeds(
    seeds: int, banded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyplot, "close", lambda _: None)
    curves = np.random.default_rng(0).normal(size=(seeds, 1, 5))
    with plots.drawing(tmp_path / "x.png") as [[axes]]:
        label = "$x_$"
        look = plots.looks(Comparison([record(label, "A-v0", 0, 1.0)]))[label]
        plots.draw_band(axes, np.arange(5), statistics.estimate(curves), curves[:, 0], look, banded)
    assert (len(axes.lines), len(axes.collections)) == (1, banded)
    if seeds == 3:
        ends = axes.collections[0].get_paths()[0].get_extents()
        assert (ends.y0, ends.y1) == pytest.approx((curves.min(), curves.max()))
    assert np.allclose(axes.lines[0].get_ydata(), curves.mean(axis=(0, 1)))
    # Matplotlib shows an escaped dollar as a dollar, and does not make a formula of it.
    (name,) = axes.figure.legends[0].get_texts()
    assert name.get_text() == r"\$x_\$"
    monkeypatch.undo()
    pyplot.close(axes.figure)


def test_packed_records_give_the_same_report(tmp_path: Path) -> None:
    """Alone, and in a folder in which a run that failed is made again. A run counts once."""
    runs, packed = tmp_path / "runs", tmp_path / "deeper" / "packed.jsonl.gz"
    write(runs, RECORDS)
    assert main(["report", "--out", str(runs), "--export", str(packed)]) == 0
    first = packed.read_bytes()
    assert main(["report", "--out", str(tmp_path / "again"), "--from", str(packed)]) == 0
    write(tmp_path / "more", [failed("sb3_ppo", "A-v0", 1), RECORDS[2]])
    (tmp_path / "more" / "records" / packed.name).write_bytes(first)
    assert main(["report", "--out", str(tmp_path / "more")]) == 0
    for folder in ("again", "more"):
        for name in ("report.md", "report.html", "scores.csv"):
            assert (tmp_path / folder / name).read_text() == (runs / name).read_text()
    records.pack(records.read(runs / "records"), packed)
    assert packed.read_bytes() == first


@pytest.mark.parametrize(
    ("content", "message"), [('{"format": 99}', "has format 99, and this version reads format 1"), ("[", "Expecting")]
)
def test_a_record_that_cannot_be_read_is_named(content: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    (tmp_path / "records" / "other.json").write_text(content)
    with pytest.raises(SystemExit, match=rf"other\.json .*{message}"):
        main(["report", "--out", str(tmp_path)])


CUT, NO_JSON = gzip.compress(b"text" * 99)[:-9], gzip.compress(b"\xff")


@pytest.mark.parametrize("content", [b"text", CUT, NO_JSON], ids=["text", "cut", "no JSON"])
def test_a_file_that_is_no_export_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(SystemExit, match=r"file\.gz cannot be read as records: "):
        main(["report", "--out", str(tmp_path), "--from", str(tmp_path / "file.gz")])


def test_reports_that_cannot_be_made_say_why(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    out = ["report", "--out", str(tmp_path)]
    for given, message in (
        (["report", "--out", str(tmp_path / "nowhere")], r"--out .*nowhere has no records"),
        ([*out, "--from", "x.jsonl.gz"], "No such file or directory: 'x.jsonl.gz'"),
        ([*out, "--export", "x.jsonl"], "--export x.jsonl needs a name that ends in .jsonl.gz"),
        ([*out, "--export", f"{tmp_path}/records/x.json/y.jsonl.gz"], r"File exists: .*/records/x.json"),
    ):
        (tmp_path / "records" / "x.json").touch()
        with pytest.raises(SystemExit, match=message):
            main(given)
    (tmp_path / "report.md").mkdir()
    with pytest.raises(SystemExit, match=f"{tmp_path}/report.md"):
        main(out)
