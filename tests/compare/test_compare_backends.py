"""Where the runs of a comparison are made: in local processes or on a cluster."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comparing import InProcess, Lost, compare

from sb3_ppo_variants.compare import backends, records
from sb3_ppo_variants.compare.backends import connect, make_records
from sb3_ppo_variants.compare.plan import Run, make_plan
from sb3_ppo_variants.compare.settings import Conditions, read_setting

pytestmark = pytest.mark.usefixtures("blank_pictures")


class Losing(InProcess):
    """Loses its worker at the runs in ``LOSSES``, as often as given there."""

    def records(self, runs: Any, work: Any) -> Iterator[records.Record]:
        for run in runs:
            if LOSSES.get(run.env, 0) > 0:
                LOSSES[run.env] -= 1
                raise Lost("gone")
            yield work(run)


LOSSES: dict[str, int] = {}


def test_a_run_that_loses_its_worker_twice_is_failed() -> None:
    envs = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"]
    runs = [run for run in make_plan([read_setting("ppo_clip")], envs, 1, Conditions()).runs if run.algorithm]
    LOSSES.update({"Acrobot-v1": 2, "Pendulum-v1": 1})
    begun: list[str] = []

    def work(run: Run) -> Any:
        begun.append(run.env)
        return {"name": run.name, "env": run.env, "status": "finished"}

    made = list(make_records(runs, work, Losing("none", 1, Lost)))
    assert {record["env"]: record["status"] for record in made} == {
        "CartPole-v1": "finished",
        "Acrobot-v1": "failed",
        "MountainCar-v0": "finished",
        "Pendulum-v1": "finished",
    }
    assert sorted(begun) == sorted(set(envs) - {"Acrobot-v1"})
    assert "ended twice" in next(record["error"] for record in made if record["status"] == "failed")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--jobs", "0"], r"--jobs must be at least 1, not 0"),
        (["--address", "127.0.0.1:1"], r"--address 127.0.0.1:1 is for --backend ray"),
    ],
)
def test_a_pool_that_can_not_be_is_refused(options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=message):
        compare(tmp_path, *options)


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


@pytest.mark.parametrize("backend, package", [("ray", "ray"), ("dask", "distributed")])
def test_a_missing_cluster_names_its_extra(
    backend: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match=rf"pip install -e '\.\[{backend}\]'"):
        compare(tmp_path, "--backend", backend)


@pytest.mark.parametrize("backend, name", [("ray", "Ray cluster"), ("dask", "Dask scheduler")])
def test_an_address_without_a_port_is_refused(backend: str, name: str) -> None:
    with pytest.raises(SystemExit, match=f"no {name} answers at --address nonsense: "), connect(backend, "nonsense", 1):
        pass


class Growing:
    """A Dask client whose cluster has more cores at each look."""

    def __init__(self, *_: object, **__: object):
        self._cores = iter([0, 0, 3, 4])

    def ncores(self) -> dict[str, int]:
        return {"tcp://127.0.0.1:1": next(self._cores)}

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_a_cluster_gets_time_for_its_first_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed.Client", Growing)
    monkeypatch.setattr(backends, "SECONDS_BETWEEN_LOOKS", 0)
    with connect("dask", "127.0.0.1:1", None) as pool:
        assert pool.jobs == 3
    monkeypatch.setattr(backends, "SECONDS_FOR_CORES", -1)
    with pytest.raises(SystemExit, match="too few cores, 0 instead of 1: add workers, "):
        connect("dask", "127.0.0.1:1", 4).__enter__()
