"""The benchmark of whole processes runs and reports its measurements."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from benchmarks import cold
from benchmarks.__main__ import main
from fresh import ended, run_code_anew


def forked(command: list[str], **_: Any) -> CompletedProcess:
    """Replace a process that would have to import everything."""
    code, *options = command[4:]
    result = ended(run_code_anew, f"import sys; sys.argv = ['-c', *{options}]\n{code}")
    return CompletedProcess(command, *result)


@pytest.mark.parametrize("is_cold", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_cold_processes(
    is_cold: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cold.RUNS, "cartpole", (("CartPole-v1", 1), "MlpPolicy", {"n_steps": 64}, 64))
    if not is_cold:
        monkeypatch.setattr("subprocess.run", forked)
    file = tmp_path / "cold.json"
    assert main(["cold", "--workloads", "cartpole", "--pairs", "1", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    for runs in json.loads(file.read_text())["runs"]["cartpole"].values():
        [[imports, seconds, memory]] = runs
        assert 0 <= imports < seconds and 50 < memory < 10_000
    assert main(["cold", "--report", str(file)]) == 0
    assert capsys.readouterr().out == printed


def test_the_table_of_cold_processes() -> None:
    runs = {
        "PPO": [[1.0, 10.0, 200.0], [2.0, 8.0, 200.0], [4.0, 9.0, 200.0]],
        "PPOClip": [[1.5, 3.0, 210.0], [2.0, 4.0, 210.0], [6.0, 2.7, 190.0]],
    }
    assert cold.table({"cartpole": runs})[2] == "| cartpole | 2, 2 (1.50x) | 9, 3 (0.30x) | 200, 210 (1.05x) |"
