"""Each run of a comparison is made exactly once, whatever happens in between."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import ALGOS, SHORT, InProcess, Lost, compare, contents, files, written
from filelock import FileLock
from rich.console import Console

from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import records, runs
from sb3_ppo_variants.compare.plan import Conditions, Run, make_plan, read_setting
from sb3_ppo_variants.compare.records import LAST, RANDOM, decimals, trailing_means
from sb3_ppo_variants.compare.runs import Pool, RunLog, connect, following, make_records
from sb3_ppo_variants.recipes import Episodes, build, recipe

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(*_: Any) -> Iterator[Pool]:
        yield InProcess("none", 1, Lost)

    monkeypatch.setattr(runs, "connect", connect)


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
    log = RunLog()
    log.returns, log.ends = [-0.0000562391, 0.0], [1, 2]
    measured = log.result(2)
    assert measured["last_returns"] == [-0.000056239, 0.0] and measured["score"] == -0.00002812


@pytest.mark.usefixtures("in_process")
def test_finished_runs_are_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tmp_path) == 0
    before = files(tmp_path)
    assert compare(tmp_path) == 0
    assert "3 are finished, 0 to make" in capsys.readouterr().out
    assert files(tmp_path) == before
    assert compare(tmp_path, "--seeds", "2") == 0
    more = files(tmp_path)
    assert len(more) == 5 and before.items() < more.items()
    # Another setting gets its own records.
    assert compare(tmp_path, "-p", "gamma=0.9") == 0
    assert len(files(tmp_path)) == 8 and more.items() < files(tmp_path).items()
    assert (tmp_path / "report.md").read_text().count("## CartPole-v1") == 2


@pytest.mark.usefixtures("in_process")
def test_the_report_has_the_names_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text("settings: [ppo_clip, sb3_ppo]\nnames: {ppo_clip: Ours, sb3_ppo: SB3}\n")
    assert compare(tmp_path / "out", "--config", str(tmp_path / "mine.yml")) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| Ours " in text and "| ppo_clip" not in text and "| ppo_unclipped" in text


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_exported_records_are_continued_in_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = tmp_path / "packed" / "mine.jsonl.gz"
    assert compare(tmp_path / "first") == 0
    assert main(["report", "--out", str(tmp_path / "first"), "--export", str(exported)]) == 0
    packed = {record["name"]: record for record in records.read(exported)}
    assert len(packed) == 3
    capsys.readouterr()
    (tmp_path / "second" / "records").mkdir(parents=True)
    exported.rename(tmp_path / "second" / "records" / exported.name)
    assert compare(tmp_path / "second", "--seeds", "2") == 0
    assert " = 4 runs, and 1 of the random policy: 3 are finished, 2 to make" in capsys.readouterr().out
    found = written(tmp_path / "second")
    assert len(found) == 5 and packed.items() <= found.items() and len(files(tmp_path / "second")) == 2


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


@pytest.mark.usefixtures("in_process")
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, times = os.fsync, iter(range(1000))

    def fsync(descriptor: int) -> None:
        # Each record syncs the disk twice: its file and its folder.
        if next(times) >= 4:
            raise OSError(28, "No space left on device")
        synced(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(SystemExit, match=r"json could not be written: .*No space left on device.* the rest"):
            compare(tmp_path, "--seeds", "2")
    before = files(tmp_path)
    assert len(before) == 2 and not list((tmp_path / "records").glob("*.tmp"))
    assert compare(tmp_path, "--seeds", "2") == 0
    assert len(files(tmp_path)) == 5 and before.items() < files(tmp_path).items()


@pytest.mark.usefixtures("in_process")
def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(SystemExit, match=r"in use by another command"):
        compare(tmp_path)


# Progress


def test_a_run_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOOK", 0.0)
    episodes, somewhere = Episodes(), RunLog(tmp_path / "run")
    # The folder of another machine does not exist here.
    model = build(recipe("ppo_clip", "CartPole-v1"), seed=0)
    model.learn(1024, [episodes, somewhere, RunLog(tmp_path / "elsewhere" / "run")])
    share, said = (tmp_path / "run").read_text().split(" ", 1)
    assert float(share) == model.num_timesteps / 1024
    assert re.fullmatch(rf"[\d,]+ steps/s, mean return {np.mean(episodes.returns[-100:]):.4g}", said)


@pytest.mark.usefixtures("in_process")
def test_runs_in_progress_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "PRINT", 0.01)
    assert compare(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    for label in (RANDOM, "ppo_clip", "ppo_unclipped"):
        run = f"{label}, CartPole-v1, seed 0: "
        *moving, last = [line for line in lines if run in line]
        assert "/3 " in last and moving
        assert all(re.fullmatch(rf"{run}\d+%, [\d,]+ steps/s, (no episode.*|mean return [\d.]+)", e) for e in moving)


def test_runs_in_progress_have_lines_that_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOOK", 0.01)
    terminal = Console(file=StringIO(), width=90, force_terminal=True, force_interactive=True, color_system=None)
    monkeypatch.setattr(runs, "get_console", lambda: terminal)
    planned = make_plan([read_setting("ppo_clip:n_epochs=5")], ["CartPole-v1"], 2, [Conditions()])
    waiting = {run.name: run for run in planned if run.algorithm}
    for share, name in zip((0.25, 0.5), waiting, strict=True):
        (tmp_path / name).write_text(f"{share} 123 steps/s")
    with following(tmp_path, waiting):
        text = lambda: terminal.file.getvalue()  # type: ignore[attr-defined]  # noqa: E731
        while "seed 1" not in text():
            time.sleep(0.01)
    assert re.search(r"ppo_clip n_epochs=5, CartPole-v1, seed 1 .* 50% .* 123 steps/s", text())
    assert re.search(r"all runs .* 38% ", text())


# Processes and clusters


class Losing(InProcess):
    """Loses its worker at each run in Acrobot."""

    def records(self, runs: Any, work: Any) -> Iterator[records.Record]:
        for run in runs:
            if run.env == "Acrobot-v1":
                raise Lost("gone")
            yield work(run)


def test_a_run_that_loses_its_worker_is_failed() -> None:
    envs = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"]
    planned = [run for run in make_plan([read_setting("ppo_clip")], envs, 1, [Conditions()]) if run.algorithm]
    begun: list[str] = []

    def work(run: Run) -> Any:
        begun.append(run.env)
        return {"name": run.name, "env": run.env, "status": "finished"}

    made = list(make_records(planned, work, Losing("none", 1, Lost)))
    failed = [record for record in made if record["status"] == "failed"]
    assert sorted(record["env"] for record in made) == sorted(envs) and sorted(begun) == sorted({*envs} - {envs[1]})
    assert [record["env"] for record in failed] == ["Acrobot-v1"] and "gone" in failed[0]["error"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="not Linux")
def test_there_are_no_more_jobs_than_cores_that_may_be_used() -> None:
    """A batch system such as Slurm gives a process some of the cores of its machine."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with connect("loky", None, None) as pool:
            assert (pool.jobs, pool.cores) == (1, 1)
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize(
    ("package", "option", "extra"),
    [
        ("ray", ["--backend", "ray"], "ray"),
        ("distributed", ["--backend", "dask"], "dask"),
        ("tensorboard", ["--tensorboard", "x"], "examples"),
    ],
)
def test_a_missing_package_names_its_extra(
    package: str, option: list[str], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match=rf"pip install -e '\.\[{extra}\]'"):
        compare(tmp_path, *option)


def command(out: Path, *arguments: str) -> subprocess.Popen:
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    line = ["-m", "sb3_ppo_variants", "compare", "--out", str(out), *ALGOS, *SHORT, *arguments]
    return subprocess.Popen(
        [sys.executable, *line],
        env={**os.environ, "PYTHONPATH": paths, "MPLBACKEND": "agg"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # If a shell started the tests in the background, processes would ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def ended(out: Path, *arguments: str) -> tuple[int, str]:
    started = command(out, *arguments)
    output, _ = started.communicate()
    return started.returncode, output


@pytest.mark.slow
def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    generator = random.Random(0)
    arguments = ["--seeds", "2", "--timesteps", "4096"]
    assert compare(tmp_path / "whole", *arguments) == 0
    out, seen = tmp_path / "killed", dict[str, str]()
    for _ in range(6):
        started = command(out, *arguments)
        time.sleep(generator.uniform(3, 8))
        started.send_signal(signal.SIGKILL)
        # The workers share this pipe, so it stays open until they exit.
        started.communicate(timeout=60)
        # The records of finished runs are unchanged, including their times.
        assert seen.items() <= files(out).items()
        seen = files(out)
    code, output = ended(out, *arguments)
    assert code == 0, output
    assert seen.items() <= files(out).items() and contents(out) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_command_resumes_its_runs(tmp_path: Path) -> None:
    arguments = ["--seeds", "1", "--timesteps", "40000", "--resume-every", "5000"]
    assert compare(tmp_path / "whole", *arguments) == 0
    out = tmp_path / "killed"
    for _ in range(2):
        known = {*out.glob("to-resume/*/step_*")}
        started = command(out, *arguments)
        while started.poll() is None and len({*out.glob("to-resume/*/step_*")} - known) < 2:
            time.sleep(0.05)
        started.send_signal(signal.SIGKILL)
        started.communicate(timeout=60)
    assert not files(out).keys() & {name for name in files(tmp_path / "whole") if "random" not in name}
    code, output = ended(out, *arguments)
    assert code == 0, output
    assert "- runs that continue from a checkpoint: 2\n" in output
    assert contents(out) == contents(tmp_path / "whole") and not list(out.glob("to-resume/*"))


@pytest.mark.slow
def test_a_killed_worker_is_a_failed_run(tmp_path: Path) -> None:
    code, output = ended(tmp_path, "--envs", "CartPole-v1", "troubled_envs:EndsItsProcess-v0")
    assert code == 1 and "A process ended while" in output
    status = {(r["label"], r["env"]): r["status"] for r in written(tmp_path).values()}
    # A run that was in progress beside it may have failed, too.
    assert len(status) == 6 and all(state == "failed" for (_, env), state in status.items() if "Ends" in env)
    assert "finished" in status.values()


@pytest.mark.slow
def test_an_interrupted_command_says_so(tmp_path: Path) -> None:
    started = command(tmp_path, "--timesteps", "1000000")
    # The run of the random policy has ended, and others have begun.
    while started.poll() is None and not files(tmp_path):
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    output, _ = started.communicate()
    assert started.returncode == 130
    assert "the same command continues" in output and "Traceback" not in output


HEAD = """
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "node_ip_address": "127.0.0.1"})
print(cluster.address, flush=True)
input()
cluster.shutdown()
"""


@pytest.mark.slow
def test_clusters_give_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    # Otherwise, Ray replaces the loopback address with another address of this machine.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    assert compare(tmp_path / "here") == 0
    with subprocess.Popen(
        [sys.executable, "-c", HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as head:
        assert head.stdin is not None and head.stdout is not None
        address = next(line.strip() for line in head.stdout if line.startswith("127.0.0.1"))
        code, output = ended(tmp_path / "ray", "--backend", "ray", "--address", address)
        head.communicate("\n")
    assert code == 0, output
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="") as cluster:
        code, output = ended(tmp_path / "dask", "--backend", "dask", "--address", cluster.scheduler_address)
        assert code == 0, output
    assert contents(tmp_path / "ray") == contents(tmp_path / "dask") == contents(tmp_path / "here")
