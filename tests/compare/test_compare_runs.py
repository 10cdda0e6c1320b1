"""Each run of a comparison is made exactly once, whatever happens in between."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from comparing import ALGOS, SHORT, InProcess, Lost, compare, contents, files, planned, record, write, written
from filelock import FileLock

from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import backends, records
from sb3_ppo_variants.compare.backends import Pool
from sb3_ppo_variants.compare.execution import LAST, RunState, _measure
from sb3_ppo_variants.compare.records import decimals, trailing_means
from sb3_ppo_variants.recipes import recipe
from sb3_ppo_variants.recipes.training import Episodes, build

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(*_: Any) -> Iterator[Pool]:
        yield InProcess("none", 1, Lost)

    monkeypatch.setattr(backends, "connect", connect)


@pytest.mark.usefixtures("in_process")
def test_a_record_says_what_was_learned(tmp_path: Path) -> None:
    assert compare(tmp_path, "--checkpoints", "-p", "n_epochs=1") == 0
    (record,) = (record for record in written(tmp_path).values() if record["label"] == "ppo_clip")
    # Repeat the run without the command.
    made, episodes = recipe("ppo_clip", "CartPole-v1", n_epochs=1, device="cpu"), Episodes()
    model = build(made, seed=0).learn(512, callback=episodes)
    returns = [round(value, 4) for value in episodes.returns]
    assert record["episodes"] == {"ends": episodes.ends, "returns": returns}
    assert record["last_returns"] == returns[-LAST:]
    assert record["score"] == pytest.approx(sum(returns[-LAST:]) / len(returns[-LAST:]), abs=1e-4)
    assert (record["steps"], record["seed"], record["hyperparameters"]["n_epochs"]) == (512, 0, 1)
    assert record["versions"]["stable_baselines3"].startswith("2.")
    saved = PPOClip.load(tmp_path / "checkpoints" / record["name"] / "model")
    parameters = zip(saved.policy.parameters(), model.policy.parameters(), strict=True)
    assert all((a == b).all() for a, b in parameters)


def test_small_returns_keep_their_digits() -> None:
    assert [decimals(returns) for returns in ([12.0, 1e-9], [-1.0], [0.0], [], [0.5, 1e-9], [-5.6e-5, 0.0])] == [
        4, 4, 4, 4, 5, 9,
    ]  # fmt: skip
    assert trailing_means([1, 2], [-0.000056239, -0.00001], 2)[-1] == -0.00003312
    assert trailing_means([1, 2], [-0.000056239, 3.0], 2)[-1] == 1.5
    measured = _measure(cast(Any, SimpleNamespace(returns=[-0.0000562391, 0.0], ends=[1, 2])), 2)
    assert measured["last_returns"] == [-0.000056239, 0.0] and measured["score"] == -0.00002812


@pytest.mark.usefixtures("in_process")
def test_finished_runs_are_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tmp_path) == 0
    before = files(tmp_path)
    assert compare(tmp_path) == 0
    assert "3 are finished, 0 to make" in capsys.readouterr().out
    assert files(tmp_path) == before
    options = ["--checkpoints", "--tensorboard", str(tmp_path / "logs")]
    assert compare(tmp_path, *options, "--seeds", "2", "--dry-run") == 0
    shown = capsys.readouterr().out
    for option in ("--checkpoints", "--tensorboard"):
        assert f"- finished runs, which are not made again for {option}: 2\n" in shown
    assert compare(tmp_path, "--seeds", "2") == 0
    more = files(tmp_path)
    assert len(more) == 5 and before.items() < more.items()
    # Another setting gets its own records.
    assert compare(tmp_path, "-p", "gamma=0.9") == 0
    assert len(files(tmp_path)) == 8 and more.items() < files(tmp_path).items()
    assert (tmp_path / "report.md").read_text().count("## CartPole-v1") == 2


@pytest.mark.usefixtures("in_process")
def test_the_fastest_environments_make_the_same_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envs = ["--envs", "InvertedPendulum-v5", "-p", "n_envs=2"]
    assert compare(tmp_path, *envs, "--fast-envs") == 0
    found = {record["label"]: record["vec_env"] for record in written(tmp_path).values()}
    # The random policy acts in a single environment, which is no faster in a batch.
    assert found == {"random policy": "DummyVecEnv", "ppo_clip": "MujocoVecEnv", "ppo_unclipped": "MujocoVecEnv"}
    assert "- environments in a MujocoVecEnv (2 runs)" in (tmp_path / "report.md").read_text()
    assert compare(tmp_path, *envs) == 0
    assert "3 are finished, 0 to make" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_exported_records_are_continued_in_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = tmp_path / "packed" / "mine.jsonl.gz"
    assert compare(tmp_path / "first") == 0
    assert main(["report", "--out", str(tmp_path / "first"), "--export", str(exported)]) == 0
    packed = {record["name"]: record for record in records.unpack(exported)[0]}
    assert len(packed) == 3
    capsys.readouterr()
    arguments = ["--seeds", "2", "--from", str(exported)]
    assert compare(tmp_path / "second", *arguments, "--dry-run") == 0
    assert "5 runs, 1 of them of the random policy: 3 are finished, 2 to make" in capsys.readouterr().out
    assert not (tmp_path / "second").exists()
    assert compare(tmp_path / "second", *arguments) == 0
    found = written(tmp_path / "second")
    assert len(found) == 5 and packed.items() <= found.items()
    # Nothing in the folder is replaced, and the file is no longer needed.
    before = files(tmp_path / "second")
    assert compare(tmp_path / "second", *arguments) == 0
    assert files(tmp_path / "second") == before
    exported.unlink()
    assert compare(tmp_path / "second", "--seeds", "2") == 0
    assert files(tmp_path / "second") == before


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_failed_runs_in_exported_records_are_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(PPOClip, "learn", lambda *_, **__: 1 / 0)
        assert compare(tmp_path / "first") == 1
    exported = tmp_path / "mine.jsonl.gz"
    assert main(["report", "--out", str(tmp_path / "first"), "--export", str(exported)]) == 0
    assert compare(tmp_path / "second", "--from", str(exported)) == 0
    assert "2 are finished, 1 to make, 1 of which failed before" in capsys.readouterr().out
    assert [record["status"] for record in written(tmp_path / "second").values()] == ["finished"] * 3


@pytest.mark.usefixtures("in_process")
def test_a_failed_run_is_recorded_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = {
        "RaisesInReset-v0": "no beginning",
        "RaisesAtStep1000-v0": "no step 1000",
        "Exits-v0": "SystemExit: 0",
        "PaysNaN-v0": r"nan",
    }
    envs = ["CartPole-v1", *(f"troubled_envs:{name}" for name in errors)]
    settings = ["-p", "n_envs=1", "-p", "batch_size=32", "-p", "n_epochs=1"]
    settings += ["--algos", "ppo_clip", "--envs", *envs, "--timesteps", "1024", "--seeds", "1"]
    command = ["compare", "--out", str(tmp_path), *settings]
    assert main(command) == 1
    failed = {(r["label"], r["env"]): r["error"] for r in written(tmp_path).values() if r["status"] == "failed"}
    assert len(failed) == 2 * len(errors)
    for (_, env), error in failed.items():
        assert error.startswith("Traceback") and errors[env.partition(":")[2]] in error
    report = (tmp_path / "report.md").read_text()
    assert "RuntimeError: no beginning" in report and "CartPole-v1" in report
    assert "failed: RuntimeError: no step 1000" in capsys.readouterr().out
    # Failed runs are tried again, and finished runs are not.
    assert main(command) == 1
    assert "2 are finished, 8 to make, 8 of which failed before" in capsys.readouterr().out


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return ``disk(first, end)``, which makes the disk full for the writes from number ``first`` to ``end - 1``."""
    synced = os.fsync
    times = [0, 0, 0]

    def fsync(descriptor: int) -> None:
        times[0] += 1
        if times[1] <= times[0] < times[2]:
            raise OSError(28, "No space left on device")
        synced(descriptor)

    def fill(first: int, end: int) -> None:
        times[:] = [0, first, end]

    monkeypatch.setattr(os, "fsync", fsync)
    return fill


@pytest.mark.usefixtures("in_process")
def test_a_full_disk_loses_nothing(
    tmp_path: Path, disk: Callable[[int, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    # Each record syncs the disk twice: its file and its folder.
    disk(5, 1000)
    with pytest.raises(SystemExit, match=r"json could not be written: .*No space left on device.*makes these again"):
        compare(tmp_path, "--seeds", "2")
    before = files(tmp_path)
    assert len(before) == 2
    assert not list((tmp_path / "records").glob("*.tmp"))
    assert "Records not yet written: 3" in capsys.readouterr().out
    disk(0, 0)
    assert compare(tmp_path, "--seeds", "2") == 0
    assert len(files(tmp_path)) == 5 and before.items() < files(tmp_path).items()


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_records_that_a_full_disk_refused_are_written_when_it_has_room(
    tmp_path: Path, disk: Callable[[int, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    compare(tmp_path / "roomy", "--seeds", "2")
    capsys.readouterr()
    # The first record fails twice, the second once.
    disk(1, 4)
    assert compare(tmp_path / "full", "--seeds", "2") == 0
    shown = capsys.readouterr().out
    assert contents(tmp_path / "full") == contents(tmp_path / "roomy")
    assert shown.index("Records not yet written: 2") < shown.index("1/5 ")
    assert [f"{number}/5 " in shown for number in range(1, 6)] == [True] * 5


def test_an_interrupted_command_names_the_records_that_are_not_written(
    tmp_path: Path, disk: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(InProcess):
        def records(self, runs: Any, work: Any) -> Iterator[records.Record]:
            yield from itertools.islice(map(work, runs), 2)
            raise KeyboardInterrupt

    @contextmanager
    def connect(*_: Any) -> Iterator[Pool]:
        yield Interrupted("none", 1, Lost)

    monkeypatch.setattr(backends, "connect", connect)
    # The first record is written, the second is not.
    disk(3, 1000)
    with pytest.raises(
        SystemExit, match=r"No space left.*not yet written: 1 \(ppo_clip-CartPole-v1-0-\w+\); all others"
    ):
        compare(tmp_path)
    assert len(files(tmp_path)) == 1
    # Now the disk has room, and only the rest is missing.
    disk(0, 0)
    assert compare(tmp_path) == 130
    assert len(files(tmp_path)) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_the_states_of_killed_workers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunState, "close", lambda _: None)
    assert compare(tmp_path) == 0
    assert (tmp_path / "running").is_dir() and not list((tmp_path / "running").iterdir())


def test_files_of_the_user_are_not_removed(tmp_path: Path) -> None:
    runs = planned([*ALGOS, *SHORT]).runs
    write(tmp_path, [record(run.label, run.env, run.seed, 1.0, name=run.name) for run in runs])
    left = [tmp_path / "running" / f"{runs[-1].name}.{suffix}" for suffix in ("json", "tmp")]
    own = tmp_path / "running" / "notes.txt"
    own.parent.mkdir()
    for file in (*left, own):
        file.write_text("{}")
    assert compare(tmp_path) == 0
    assert list(own.parent.iterdir()) == [own]


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_records_of_another_version_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "future.json").write_text(json.dumps({"format": 99, "status": "finished"}))
    (folder / "torn.json").write_text('{"format": 1, "na')
    assert compare(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "future.json is ignored: it is a record of format 99" in shown
    assert "torn.json is ignored" in shown
    assert "format 99" in (tmp_path / "report.md").read_text()
    assert json.loads((folder / "future.json").read_text())["format"] == 99
    assert len(files(tmp_path)) == 5


@pytest.mark.usefixtures("in_process")
def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(SystemExit, match=r"in use by another command"):
        compare(tmp_path)
