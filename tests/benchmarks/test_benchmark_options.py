"""What the options of the benchmarks refuse."""

import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from committed import ROOT

from benchmarks import gallery, stepping, throughput, workloads
from benchmarks.__main__ import main
from benchmarks.measuring import doubled_up_to

WITH_REPORTS = (
    "cold",
    "cores",
    "kl-estimators",
    "paths",
    "peers",
    "rerun",
    "scaling",
    "scaling-learning",
    "stepping",
    "threads",
    "throughput",
    "tuning",
)


@pytest.mark.parametrize("command", WITH_REPORTS)
def test_files_that_are_no_reports(command: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    with pytest.raises(SystemExit, match=r"^--report .*runs.json cannot be read as a file .*: .*No such file"):
        main([command, "--report", str(file)])
    file.write_text("{")
    with pytest.raises(SystemExit, match=r"^--report .*runs.json cannot be read as a file .*: Expecting"):
        main([command, "--report", str(file)])
    file.write_text('{"versions": {}}')
    with pytest.raises(SystemExit, match=r"^--report .*runs.json is not a file that --json of this command wrote"):
        main([command, "--report", str(file)])


@pytest.mark.parametrize(("command", "other"), [*permutations(["cold", "peers", "throughput-bars"], 2)])
def test_reports_of_other_commands(command: str, other: str) -> None:
    with pytest.raises(SystemExit, match="is not a file that --json of this command wrote"):
        main([command.removesuffix("-bars"), "--report", str(ROOT / "results" / f"{other}.json")])


def test_bars_are_those_of_the_workloads_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(workload: workloads.Workload, *_: object) -> dict[str, Any]:
        measured.extend(name for name, each in workloads.WORKLOADS.items() if each is workload)
        return {"seconds": {"PPO": [2.0], "PPOClip": [1.0]}}

    monkeypatch.setattr(throughput, "measure", measure)
    with pytest.raises(
        SystemExit, match=r"^--bars: scheduling in --workloads has no bar; those that have one are half"
    ):
        main(["throughput", "--bars", "--workloads", "cartpole", "scheduling"])
    assert main(["throughput", "--bars", "--workloads", "hopper"]) == 0
    assert measured == ["hopper"]
    monkeypatch.setattr(throughput, "BARS", {**workloads.BARS, "breakout": workloads.BARS["breakout-ale"]})
    assert main(["throughput", "--bars", "--workloads", *workloads.DEFAULT_WORKLOADS]) == 0
    assert measured[1:] == workloads.DEFAULT_WORKLOADS
    assert main(["throughput", "--bars"]) == 0
    assert measured[5:] == [*workloads.BARS, "breakout"]


def test_every_algorithm_of_throughput_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    """PPOCustom has no objective of its own."""
    with pytest.raises(SystemExit):
        main(["throughput", "--algorithms", "PPOCustom"])
    assert "invalid choice: 'PPOCustom'" in capsys.readouterr().err


def test_the_gallery_trains_each_seed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int, int | None]] = []
    monkeypatch.setattr(gallery, "delayed", lambda _: lambda *run: (made.append, (run,), {}))
    monkeypatch.setattr(gallery, "append", lambda *_: None)
    options = ["--envs", "CartPole-v1", "--jobs", "1", "--records", str(tmp_path / "gallery.jsonl")]
    with pytest.raises(SystemExit, match=r"^--seeds=-1 is not allowed; allowed: an int in \[0, 2\*\*32 - 1\]"):
        main(["gallery", *options, "--seeds", "2", "-1"])
    monkeypatch.setattr(gallery, "page", lambda *_: "")
    monkeypatch.setattr(gallery, "read", lambda _: [{"env": "Pendulum-v1", "seed": 1, "timesteps": 100}])
    assert main(["gallery", *options, "--seeds", "2", "1", "2", "--gallery", str(tmp_path)]) == 0
    assert [run[:2] for run in made] == [("CartPole-v1", 2), ("CartPole-v1", 1)]


def test_a_gallery_without_records_leaves_the_page(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("as before")
    with pytest.raises(SystemExit, match=r"^--records .*gallery.jsonl has no records"):
        main(["gallery", "--report", "--records", str(tmp_path / "gallery.jsonl"), "--gallery", str(tmp_path)])
    assert (tmp_path / "README.md").read_text() == "as before"


def test_counts_of_cores_are_powers_of_two_and_the_most() -> None:
    assert [doubled_up_to(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_stepping_needs_the_packages_of_its_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """EnvPool has no wheels for Python 3.10."""
    monkeypatch.setitem(sys.modules, "envpool", None)
    monkeypatch.setattr(stepping, "measure", lambda *_: {stepping.REFERENCE: [1.0]})
    assert main(["stepping", "--workloads", "breakout"]) == 0
    with pytest.raises(ImportError, match="envpool"):
        main(["stepping", "--workloads", "halfcheetah"])
    assert main(["stepping", "--workloads", "halfcheetah", "--without", "make_envpool_vec_env"]) == 0


def test_the_help_names_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["throughput", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: halfcheetah, hopper, cartpole, breakout)" in text and "(default: PPOClip)" in text
