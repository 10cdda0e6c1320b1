"""Reports with pictures, from records made by hand."""

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparing import RECORDS, record, text_of, write
from filelock import FileLock
from matplotlib import pyplot
from matplotlib.figure import Figure

from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import plots, records, statistics
from sb3_ppo_variants.compare.records import RANDOM


@pytest.fixture
def only_png(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip pictures as SVG and PDF, which take most of the time."""
    monkeypatch.setattr(plots, "VECTOR", {})


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
    assert "| sb3_ppo | 2 | 1 to 2 | 0.75 |" in text
    assert "ValueError: no" in text
    page = (tmp_path / "report.html").read_text()
    pictures = re.findall(r'src="([^"]*)"', page)
    # Aggregates, profiles, sample efficiency, and learning curves of two environments.
    assert len(pictures) == 5
    assert all(base64.b64decode(source.split(",")[1]).startswith(b"\x89PNG") for source in pictures)
    assert re.search(r"<td[^>]*>60 ± 35.36 \(2\)</td>", page) and "http" not in page
    assert len(page) < 1_000_000
    for suffix, begins in ((".svg", b"<?xml"), (".pdf", b"%PDF"), (".png", b"\x89PNG")):
        drawn = list((tmp_path / "pictures").glob(f"*{suffix}"))
        assert len(drawn) == 5 and all(file.read_bytes().startswith(begins) for file in drawn)
    csv = pd.read_csv(tmp_path / "scores.csv")
    assert len(csv) == 8
    assert csv[csv["label"] == "ppo_clip"]["normalised"].tolist() == [0.75, 0.25, 0.75, -0.25]


def test_a_mean_without_an_interval_is_a_line_with_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: drawn.append(figure))
    scores = {"one": np.array([[0.4, 0.2], [0.8, 0.6]]), "two": np.array([[0.1], [0.2], [0.3], [0.4]])}
    plots.draw_aggregates(scores, ["one", "two"], Path("unused.png"))
    (axes,) = drawn[0].axes
    seeds = [line.get_xdata() for line in axes.lines if line.get_marker() == "o"]
    assert np.allclose(seeds[0], [0.3, 0.7]) and np.allclose(seeds[1], scores["two"][:, 0])
    # Only the second setting has a bar, which is the interval around 0.25.
    (bar,) = axes.patches
    low, high = bar.get_path().get_extents(bar.get_patch_transform()).intervalx
    assert (low + high) / 2 == pytest.approx(0.25) and high - low > 0.1
    pyplot.close(drawn[0])


@pytest.mark.parametrize(("seeds", "lines", "bands"), [(3, 4, 0), (4, 1, 1)])
def test_a_curve_without_an_interval_has_a_line_for_each_seed(
    seeds: int, lines: int, bands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: drawn.append(figure))
    curves = np.random.default_rng(0).normal(size=(seeds, 1, 5))
    with plots.drawing(Path("unused.png")) as [[axes]]:
        plots.draw_band(axes, np.arange(5), "one", statistics.band(curves), plots.looks(["one"]), curves.mean(axis=1))
    assert (len(axes.lines), len(axes.collections)) == (lines, bands)
    assert np.allclose(axes.lines[0].get_ydata(), curves.mean(axis=(0, 1)))
    pyplot.close(drawn[0])


@pytest.mark.parametrize("label", ["_mine", "$x_$", "from $1 to $2"])
def test_labels_are_drawn_as_they_are(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []

    def save(figure: Figure, _: Path) -> None:
        figure.canvas.draw()
        drawn.append(figure)

    monkeypatch.setattr(plots, "save_figure", save)
    scores = {label: np.random.default_rng(0).random((4, 2))}
    plots.draw_aggregates(scores, [label], Path("unused.png"))
    plots.draw_profiles(scores, [label], Path("unused.png"))
    with plots.drawing(Path("unused.png")) as [[axes]]:
        plots.draw_band(axes, np.arange(2), label, statistics.band(scores[label][:, None]), plots.looks([label]))
    bars, *curves = drawn
    names: list[Any] = [bars.axes[0].get_yticklabels()[0], *(figure.legends[0].get_texts()[0] for figure in curves)]
    assert len(names) == 3
    for name in names:
        # Matplotlib shows an escaped dollar as a dollar, and does not make a formula of it.
        shown, formula = name._preprocess_math(name.get_text())
        assert shown.strip() == label and not formula
        pyplot.close(name.get_figure())


@pytest.mark.usefixtures("blank_pictures")
def test_a_packed_file_gives_the_same_report(tmp_path: Path) -> None:
    write(tmp_path / "runs", RECORDS)
    packed = tmp_path / "deeper" / "packed.jsonl.gz"
    with pytest.raises(SystemExit, match=r"--export .*packed.jsonl needs a name that ends in .jsonl.gz"):
        main(["report", "--out", str(tmp_path / "runs"), "--export", str(packed.with_suffix(""))])
    assert main(["report", "--out", str(tmp_path / "runs"), "--export", str(packed)]) == 0
    first = packed.read_bytes()
    assert main(["report", "--out", str(tmp_path / "again"), "--from", str(packed)]) == 0
    for name in ("report.md", "report.html", "scores.tex", "scores.csv"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "runs" / name).read_text()
    records.pack([record("ppo_clip", "A-v0", 0, 1, format=99)], packed)
    assert "format 99" in records.unpack(packed)[1][0]
    records.pack(records.read(tmp_path / "runs" / "records")[0], packed)
    assert packed.read_bytes() == first


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("kl", [0.01, 0.0])
def test_what_updates_logged_is_drawn(kl: float, tmp_path: Path) -> None:
    logged: Any = {"training": {"kl": [None, *[kl] * 99], "entropy_loss": [-1.0] * 100}}
    runs: list[Any] = [{**each, **logged} for each in RECORDS]
    write(tmp_path, runs)
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "![What the updates logged]" in text_of(tmp_path / "report.md")
    assert len(list((tmp_path / "pictures").glob("*-training.png"))) == 1


@pytest.mark.usefixtures("blank_pictures")
def test_every_environment_has_its_own_picture(tmp_path: Path) -> None:
    envs = ["a/b-v0", "a:b-v0", "走-v0", "跳-v0", "Other-v0"]
    write(tmp_path, [record("ppo_clip", env, 0, 1.0, name=f"run-{number}") for number, env in enumerate(envs)])
    assert main(["report", "--out", str(tmp_path)]) == 0
    files = re.findall(r"!\[Learning curves in .*\]\((.*)\)", (tmp_path / "report.md").read_text(encoding="utf-8"))
    assert len(files) == len(set(files)) == 5 and all((tmp_path / file).exists() for file in files)
    assert sum(file.endswith("-Other-v0.png") for file in files) == 1


@pytest.mark.usefixtures("only_png")
def test_one_environment_does_not_spoil_the_others(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"last_returns": [], "episodes": {"ends": [], "returns": []}}
    unscaled = [
        *(record(label, "Flat-v0", seed, 20) for label in ("sb3_ppo", "ppo_clip") for seed in range(2)),
        *(record(label, "Long-v0", seed, None, **nothing) for label in ("sb3_ppo", "ppo_clip") for seed in range(2)),
        record(RANDOM, "Flat-v0", 0, 20),
        record(RANDOM, "Long-v0", 0, None, **nothing),
    ]
    write(tmp_path, [*RECORDS, *unscaled])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert "Without Flat-v0, Long-v0, where no run beats the random policy" in text
    assert "| ppo_clip | 60 ± 35.36 (2) | -40 ± 28.28 (2) | 20 ± 0 (2) | no episode ended |" in text
    assert "| sb3_ppo | 2 | 1 to 2 | 0.75 |" in text
