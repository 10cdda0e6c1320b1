"""What the options of the benchmarks refuse."""

from itertools import permutations
from pathlib import Path

import pytest
from committed import ROOT

from benchmarks.__main__ import main
from benchmarks.measuring import doubled_up_to

WITH_REPORTS = ("kl-estimators", "peers", "scaling", "stepping", "threads", "throughput")


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


@pytest.mark.parametrize(("command", "other"), [*permutations(["peers", "throughput-bars"])])
def test_reports_of_other_commands(command: str, other: str) -> None:
    with pytest.raises(SystemExit, match="is not a file that --json of this command wrote"):
        main([command.removesuffix("-bars"), "--report", str(ROOT / "results" / f"{other}.json")])


def test_every_algorithm_of_throughput_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    """PPOCustom has no objective of its own."""
    with pytest.raises(SystemExit):
        main(["throughput", "--algorithms", "PPOCustom"])
    assert "invalid choice: 'PPOCustom'" in capsys.readouterr().err


def test_counts_of_cores_are_powers_of_two_and_the_most() -> None:
    assert [doubled_up_to(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_the_help_names_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["throughput", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: halfcheetah, hopper, cartpole, breakout)" in text and "(default: PPOClip)" in text
