"""The comparison with other packages runs their programs and reports their speed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers
from benchmarks.__main__ import main
from benchmarks.peers import Program


def test_start_and_compilation_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def seconds(program: Program, workload: str, steps: int, folder: Path) -> float:
        asked.append(steps)
        return 30.0 + steps / 500

    monkeypatch.setattr(peers, "seconds", seconds)
    monkeypatch.setitem(peers.STEPS, "cartpole", (1_000, 3_000))
    assert peers.rate(Program({}, factor=4), "cartpole", Path()) == 500.0
    assert sorted(asked) == [1_000, 9_000]


def test_a_program_runs_with_its_arguments_and_variables(tmp_path: Path) -> None:
    code = "import os, sys; open(sys.argv[1], 'w').write(f'{sys.argv[2]} {os.environ[\"OF_PEER\"]}')"
    program = Program({"cartpole": ("-c", code, "{folder}/written", "{steps}")}, variables={"OF_PEER": "set"})
    assert peers.seconds(program, "cartpole", 64, tmp_path) > 0
    assert (tmp_path / "written").read_text() == "64 set"


def test_the_commit_of_a_repository_is_checked_out(tmp_path: Path) -> None:
    (source := tmp_path / "Source").mkdir()

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.com")
        return subprocess.run(["git", *who, *arguments], cwd=source, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    first = git("rev-parse", "HEAD").strip()
    (source / "later").touch()
    git("add", "later")
    git("commit", "-q", "-m", "second")
    program = Program({}, repository=(str(source), first))
    (folder := tmp_path / "peers").mkdir()
    for _ in range(2):  # The second call finds the clone of the first.
        peers.install(program, folder)
        assert (folder / "source" / ".git").exists() and not (folder / "source" / "later").exists()


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


def test_every_run_has_whole_rollouts() -> None:
    for workload, (_, n_envs, _, arguments) in peers.SETTINGS.items():
        for steps in peers.STEPS[workload]:
            assert steps % (n_envs * arguments["n_steps"]) == 0
