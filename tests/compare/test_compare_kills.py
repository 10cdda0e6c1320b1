"""Comparisons in separate processes, which are killed, and on clusters."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from comparing import ALGOS, SHORT, compare, contents, files, written

pytestmark = pytest.mark.slow


def command(out: Path, *arguments: str) -> subprocess.Popen:
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": paths, "MPLBACKEND": "agg"}
    line = [
        sys.executable,
        "-m",
        "sb3_ppo_variants",
        "compare",
        "--out",
        str(out),
        *ALGOS,
        *SHORT,
        *arguments,
    ]
    return subprocess.Popen(
        line,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # If a shell started the tests in the background, processes would ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def killed_and_restarted(out: Path, kills: int, wait: Callable[[], float], *arguments: str) -> None:
    """Kill the command ``kills`` times, each time shortly after its workers start, and then let it finish."""
    seen: dict[str, str] = {}
    for _ in range(kills):
        started = command(out, *arguments)
        known = len(files(out))
        while started.poll() is None and not list((out / "running").glob("*.json")) and len(files(out)) == known:
            time.sleep(0.05)
        time.sleep(wait())
        started.send_signal(signal.SIGKILL)
        # The workers share this pipe, so it stays open until they exit.
        started.communicate(timeout=60)
        now = files(out)
        assert seen.items() <= now.items()
        seen = now
    last = command(out, *arguments)
    output, _ = last.communicate()
    assert last.returncode == 0, output
    # The records of finished runs are unchanged, including their times.
    assert seen.items() <= files(out).items()


def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    generator = random.Random(0)
    arguments = ["--seeds", "2", "--timesteps", "4096"]
    assert compare(tmp_path / "whole", *arguments) == 0
    killed_and_restarted(tmp_path / "killed", 10, lambda: generator.uniform(0, 1.5), *arguments)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


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
    assert max(int(path.name.removeprefix("step_")) for path in out.glob("to-resume/*/step_*")) >= 5000
    last = command(out, *arguments)
    output, _ = last.communicate()
    assert last.returncode == 0, output
    assert "- runs that continue from a checkpoint: 2\n" in output
    assert contents(out) == contents(tmp_path / "whole")
    assert not list(out.glob("to-resume/*"))


def test_a_killed_worker_is_a_failed_run(tmp_path: Path) -> None:
    started = command(tmp_path, "--envs", "CartPole-v1", "troubled_envs:EndsItsProcess-v0")
    output, _ = started.communicate()
    assert started.returncode == 1
    assert "ended twice" in output
    status = {(r["label"], r["env"]): r["status"] for r in written(tmp_path).values()}
    assert all((state == "failed") == ("Ends" in env) for (_, env), state in status.items())
    assert len(status) == 6


def test_an_interrupted_command_says_so(tmp_path: Path) -> None:
    started = command(tmp_path, "--timesteps", "1000000")
    while started.poll() is None and not list((tmp_path / "running").glob("ppo*.json")):
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


def test_ray_gives_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise, Ray replaces the loopback address with another address of this machine.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    assert compare(tmp_path / "here") == 0
    with subprocess.Popen(
        [sys.executable, "-c", HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as head:
        assert head.stdin is not None and head.stdout is not None
        address = next(line.strip() for line in head.stdout if line.startswith("127.0.0.1"))
        started = command(tmp_path / "ray", "--backend", "ray", "--address", address)
        output, _ = started.communicate()
        head.communicate("\n")
    assert started.returncode == 0, output
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


def test_dask_gives_the_same_records(tmp_path: Path) -> None:
    from distributed import LocalCluster

    assert compare(tmp_path / "here") == 0
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="") as cluster:
        started = command(tmp_path / "dask", "--backend", "dask", "--address", cluster.scheduler_address)
        output, _ = started.communicate()
        assert started.returncode == 0, output
    assert contents(tmp_path / "dask") == contents(tmp_path / "here")
