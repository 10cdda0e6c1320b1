"""The comparison with other packages runs their programs and reports their speed."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers
from benchmarks.__main__ import main
from benchmarks.peers import Program


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SB3's PPO", "PPOClip"])
@pytest.mark.parametrize("workload", ["cartpole", pytest.param("halfcheetah", marks=pytest.mark.slow)])
def test_our_programs_train(name: str, workload: str, tmp_path: Path) -> None:
    assert peers.seconds(peers.PROGRAMS[name], workload, 64, tmp_path) > 0


def test_programs_that_are_missing_or_fail(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is missing; pass --install to create it, or leave it out with --programs"):
        peers.seconds(peers.PROGRAMS["CleanRL"], "cartpole", 64, tmp_path)
    with pytest.raises(SystemExit, match=r"(?s)failed on cartpole:.*ValueError: too few steps"):
        peers.seconds(Program({"cartpole": ("-c", "raise ValueError('too few steps')")}), "cartpole", 64, tmp_path)


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs: dict[str, Any] = {"cartpole": {"SB3's PPO": [100, 200, 100], "PPOClip": [1000, 1000, 1000]}}
    file = tmp_path / "peers.json"
    file.write_text(json.dumps({"runs": runs}))
    assert main(["peers", "--report", str(file)]) == 0
    assert "| cartpole | PPOClip | 10.00 (7.50 to 10.00) | 1000 |\n" in capsys.readouterr().out
