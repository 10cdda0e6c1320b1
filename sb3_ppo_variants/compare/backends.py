"""Where the runs are executed: in processes of this machine or on a cluster, with joblib's backends.

Workers import this module, but not the packages that draw reports.
"""

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from threading import Thread

from joblib import Parallel, cpu_count, delayed, parallel_config, register_parallel_backend
from joblib.externals.loky.process_executor import BrokenProcessPool

from sb3_ppo_variants.compare.execution import make_record
from sb3_ppo_variants.compare.plan import Run
from sb3_ppo_variants.compare.records import Record
from sb3_ppo_variants.errors import installation
from sb3_ppo_variants.saving.plain import Values

SECONDS_BETWEEN_LOOKS = 0.5
# Workers of a cluster that has just been started may join it a little later.
SECONDS_FOR_CORES = 60
Work = Callable[[Run], Record]


@dataclass(frozen=True)
class Pool:
    """A joblib backend with its options, and the number of parallel runs."""

    backend: str
    jobs: int
    # Raised when a worker is lost.
    lost: type[Exception]
    options: Values = field(default_factory=dict)
    # Those that each run has for itself.
    cores: int = 1

    def records(self, runs: Iterable[Run], work: Work) -> Iterator[Record]:
        """Yield the record of each run as soon as it is ready."""
        # With one worker, joblib would work in this process. No more runs are dispatched than may be executed at a
        # time, so that when a worker is lost, only these can be to blame.
        with parallel_config(self.backend, **self.options):
            at_once = max(self.jobs, 2)
            parallel = Parallel(at_once, pre_dispatch=self.jobs, batch_size=1, return_as="generator_unordered")
            yield from parallel(delayed(work)(run) for run in runs)


def make_records(runs: Iterable[Run], work: Work, pool: Pool) -> Generator[Record, None, None]:
    """Yield the record of each run as soon as it is ready.

    Runs that were in progress when a worker was lost are made again, one at a time. A run that loses its worker again
    is recorded as failed.
    """
    waiting = {run.name: run for run in runs}
    while waiting:
        rest = iter(tuple(waiting.values()))
        try:
            for record in pool.records(rest, work):
                del waiting[record["name"]]
                yield record
        except pool.lost:
            # The runs that have not begun are still in the iterator.
            not_begun = {run.name for run in rest}
            suspects = [run for run in waiting.values() if run.name not in not_begun]
            if not suspects:
                raise
            for run in suspects:
                del waiting[run.name]
                try:
                    yield from replace(pool, jobs=1).records([run], work)
                except pool.lost as error:
                    twice = f"{error}\nThe process of this run ended twice, the second time while it was the only one."
                    yield make_record(run, "failed", {"error": twice})


@contextmanager
def connect(backend: str, address: str | None, jobs: int | None) -> Iterator[Pool]:
    """Yield the pool that the command line asks for.

    :param address: address of the cluster; ``None`` starts one on this machine
    :param jobs: number of parallel runs; ``None`` for one per core that this process may use
    :raises SystemExit: if the package of the backend is missing, there is no such cluster, or it has too few cores
    """
    package = {"ray": "ray", "dask": "distributed"}.get(backend)
    if package is not None and find_spec(package) is None:
        raise SystemExit(f"--backend {backend} needs {backend.capitalize()}: {installation(backend)}")
    if backend == "loky":
        together = {"initializer": _end_with, "initargs": (os.getpid(),)}
        jobs = jobs or cpu_count()
        yield Pool(backend, jobs, BrokenProcessPool, together, max(1, cpu_count() // jobs))
    else:
        yield from (_ray if backend == "ray" else _dask)(address, jobs)


def _end_with(parent: int) -> None:
    """End this process soon after its parent ends, because a parent that is killed cannot end its workers."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _ray(address: str | None, jobs: int | None) -> Iterator[Pool]:
    ray = import_module("ray")
    from ray.util.joblib.ray_backend import RayBackend

    class Generating(RayBackend):
        # Ray's pool calls back as results arrive, which is all that generators need. joblib disables them for all
        # multiprocessing pools.
        supports_return_generator = True

    register_parallel_backend("ray", Generating)
    try:
        context = ray.init(address=address, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise SystemExit(f"no Ray cluster answers at --address {address}: {error}") from error
    with context:
        # Ray's pool has a core for each worker, and with one worker joblib would not use the pool.
        cores = _count_cores(lambda: ray.cluster_resources().get("CPU", 0), max(jobs or 1, 2))
        yield Pool("ray", jobs or cores, ray.exceptions.RayError)


def _dask(address: str | None, jobs: int | None) -> Iterator[Pool]:
    distributed = import_module("distributed")
    # Runs must not share a process, because PyTorch's seeds and number of threads are global.
    started = {} if address else {"n_workers": jobs or cpu_count(), "threads_per_worker": 1, "dashboard_address": ""}
    try:
        client = distributed.Client(address, **started)
    except (OSError, ValueError) as error:
        raise SystemExit(f"no Dask scheduler answers at --address {address}: {error}") from error
    with client:
        cores = _count_cores(lambda: sum(client.ncores().values()), 1)
        yield Pool("dask", jobs or cores, distributed.KilledWorker)


def _count_cores(count: Callable[[], float], needed: int) -> int:
    """Wait until a cluster has as many cores as needed, and return how many it has."""
    end = time.monotonic() + SECONDS_FOR_CORES
    while (cores := int(count())) < needed:
        if time.monotonic() > end:
            few = f"the cluster has too few cores, {cores} instead of {needed}"
            raise SystemExit(f"{few}: add workers, or pass a smaller --jobs")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return cores
