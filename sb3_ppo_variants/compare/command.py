"""Compare algorithms over environments and seeds (settings x environments x seeds), resumably, and write a report."""

import argparse
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread

from filelock import FileLock, Timeout
from joblib import Parallel, delayed, parallel_config, register_parallel_backend
from joblib.externals.loky.process_executor import BrokenProcessPool
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.execution import Tracking, check, make_record, perform
from sb3_ppo_variants.compare.plan import DEFAULT, PRESETS, Plan, Run, make_plan, merge
from sb3_ppo_variants.compare.records import RANDOM, Record, Values
from sb3_ppo_variants.compare.report import LOCK, RECORDS, STATES, read_states, write
from sb3_ppo_variants.compare.settings import Conditions, assignments, parse, read_file, switch
from sb3_ppo_variants.errors import ArgumentError, installation

CHECKPOINTS = "checkpoints"
INTERRUPTED = 130
SECONDS_BETWEEN_LOOKS = 0.5
# Workers of a cluster that has just been started may join it a little later.
SECONDS_FOR_CORES = 60
Work = Callable[[Run], Record]


def run(options: argparse.Namespace) -> int:
    """Make the runs that have no record or failed before, record each when it ends, and write the report.

    :return: 0 if all runs are finished, 1 if some failed, 130 if interrupted
    """
    try:
        boards = options.tensorboard and options.tensorboard.absolute()
        tracking = Tracking(boards, options.wandb, options.out.absolute())
        tracking.check()
        plan = make_plans(options)
        if options.dry_run:
            _missing(options, plan)
            return 0
        try:
            for folder in (RECORDS, STATES):
                (options.out / folder).mkdir(parents=True, exist_ok=True)
                TemporaryFile(dir=options.out / folder).close()
        except OSError as error:
            raise ArgumentError(f"--out {options.out} cannot be written to: {error}") from error
        with FileLock(options.out / LOCK, timeout=0):
            if options.files:
                _copy(options)
            failed = _make(options, plan, _missing(options, plan), tracking)
        write(options.out, *records.load(options.out / RECORDS))
    except Timeout:
        raise SystemExit(f"--out {options.out} is in use by another command") from None
    except KeyboardInterrupt:
        print("Interrupted. Finished runs are recorded; the same command continues.")
        return INTERRUPTED
    return int(failed > 0)


def make_plans(options: argparse.Namespace) -> Plan:
    """Plan the runs that the command line asks for, under all of its conditions."""
    preset = PRESETS.get(options.preset, DEFAULT)
    cut = options.settings or "all"
    if cut not in preset.settings:
        having = ", ".join(name for name, each in PRESETS.items() if cut in each.settings)
        raise ArgumentError(f"--settings {cut} needs a --preset that has these settings: {having}")
    if options.algos and options.settings:
        raise ArgumentError("--algos and --settings both select what to compare; pass only one of them")
    names = ("protocol", "hyperparams", "entry", "normalize", "anneal")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if preset.studied and (given or options.param):
        words = [f"--{name} {value}" if name in names[:3] else switch(name, value) for name, value in given.items()]
        words += [f"-p {text}" for text in options.param]
        raise ArgumentError(
            f"{', '.join(words)} cannot change --preset {options.preset}, which has conditions of its own; "
            "leave this out, or change --preset paper-table1 instead"
        )
    conditions = [_change(each, given, options) for each in preset.studied or [preset.conditions]]
    if options.address is not None and options.backend == "loky":
        raise ArgumentError(f"--address {options.address} is for --backend ray or dask; loky needs none")
    if options.jobs is not None and options.jobs < 1:
        raise ArgumentError(f"--jobs must be at least 1, not {options.jobs}")
    settings = [parse(text) for text in options.algos or preset.cut(cut, options.protocol)]
    seeds = preset.seeds if options.seeds is None else options.seeds
    return merge(make_plan(settings, options.envs or preset.envs, seeds, each) for each in conditions)


def _change(preset: Conditions, given: Values, options: argparse.Namespace) -> Conditions:
    changes = {name: value for name, value in given.items() if name != "hyperparams"}
    if options.protocol is not None:
        changes = {"entry": "mujoco", "normalize": None, "anneal": None, **changes}
    if options.timesteps is not None:
        changes["timesteps"] = options.timesteps
    if options.param:
        changes["parameters"] = {**preset.parameters, **assignments(",".join(options.param))}
    if options.hyperparams is not None:
        # A file has entries of its own, so no entry is implied.
        changes |= {"entry": options.entry, "file": read_file(options.hyperparams)}
    return replace(preset, **changes)


def _missing(options: argparse.Namespace, plan: Plan) -> list[Run]:
    """Show the plan and its progress, and check the missing runs."""
    found, problems = records.load(options.out / RECORDS, options.files)
    status = {record["name"]: record["status"] for record in found}
    missing = [run for run in plan.runs if status.get(run.name) != "finished"]
    trainings = [run for run in plan.runs if run.algorithm]
    print(f"settings: {'; '.join(dict.fromkeys(run.label for run in trainings))}")
    print(f"environments: {'; '.join(dict.fromkeys(run.env for run in trainings))}")
    print(f"seeds: {'; '.join(dict.fromkeys(str(run.seed) for run in trainings))}")
    print(f"steps of a run: {'; '.join(dict.fromkeys(f'{run.timesteps:,}' for run in trainings))}")
    print(
        f"{len(plan.runs)} runs, {len(plan.runs) - len(trainings)} of them of the random policy: "
        f"{len(plan.runs) - len(missing)} are finished, {len(missing)} to make, "
        f"{sum(status.get(run.name) == 'failed' for run in missing)} of which failed before"
    )
    notes = [*plan.notes, *problems]
    saved = options.out / CHECKPOINTS
    unsaved = [run for run in trainings if status.get(run.name) == "finished" and not (saved / run.name).exists()]
    if options.checkpoints and unsaved:
        notes.append(f"{len(unsaved)} finished runs have no checkpoint; they are not made again for one")
    for note in notes:
        print(f"- {note}")
    check(missing)
    return missing


def _copy(options: argparse.Namespace) -> None:
    found, there = records.read(options.out / RECORDS)[0], records.load(None, options.files)[0]
    here = {record["name"] for record in found if record["status"] == "finished"}
    with records.Writer(options.out / RECORDS) as writer:
        writer.write(*(each for each in there if each["status"] == "finished" and each["name"] not in here))


def _make(options: argparse.Namespace, plan: Plan, missing: list[Run], tracking: Tracking) -> int:
    """Make the missing runs, record each when it ends, and return how many failed."""
    states = options.out / STATES
    for left in [*states.glob("*"), *(options.out / RECORDS).glob("*.tmp")]:
        # Left over from a command that was killed.
        left.unlink()
    if not missing:
        return 0
    checkpoints = (options.out / CHECKPOINTS).absolute() if options.checkpoints else None
    work = partial(perform, states=states.absolute(), checkpoints=checkpoints, tracking=tracking)
    failed = 0
    with (
        records.Writer(options.out / RECORDS) as writer,
        connect(options.backend, options.address, options.jobs) as pool,
        Display(plan.runs, missing, states) as display,
        # Closing the generator ends the workers, even if this process is interrupted.
        closing(make(missing, work, pool)) as made,
    ):
        for record in made:
            failed += record["status"] == "failed"
            # A process that was killed leaves its state.
            (states / f"{record['name']}.json").unlink(missing_ok=True)
            for written in writer.write(record):
                display.report(written)
            if writer.problem:
                display.tell(writer.problem, red=True)
    return failed


class Display(Progress):
    """A line for each run that has ended and, in a terminal, a bar for all of them and a row for each in progress."""

    def __init__(self, runs: Iterable[Run], missing: Iterable[Run], states: Path):
        self._steps = {run.name: run.timesteps if run.algorithm else 0 for run in runs}
        self._done = self._steps.keys() - {run.name for run in missing}
        self._failed = 0
        self._states = states
        console = Console()
        super().__init__(
            TextColumn("{task.description}"), BarColumn(None), "{task.percentage:3.0f}%",
            TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=console, disable=not console.is_terminal, refresh_per_second=2,
        )  # fmt: skip
        self.add_task("", total=max(1, sum(self._steps.values())), completed=self._finished_steps())

    def report(self, record: Record) -> None:
        """Report a run that finished or failed."""
        failed = record["status"] == "failed"
        self._done.add(record["name"])
        self._failed += failed
        what = "failed: " + record["error"].strip().splitlines()[-1] if failed else f"score {record['score']}"
        counted = f"{len(self._done)}/{len(self._steps)}"
        self.tell(f"{counted} {record['label']}, {record['env']}, seed {record['seed']}: {what}", red=failed)

    def tell(self, text: str, red: bool) -> None:
        """Print a line, in red if it needs the user's attention."""
        self.console.print(text, style="red" if red else None, highlight=False, markup=False, soft_wrap=True)

    def _finished_steps(self) -> int:
        return sum(steps for name, steps in self._steps.items() if name in self._done)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield a table with a row for each run in progress, and the bar."""
        states = read_states(self._states)
        failed = f", {self._failed} failed" if self._failed else ""
        steps = self._finished_steps() + sum(state["steps"] for state in states if state["label"] != RANDOM)
        for task in self.tasks:
            self.update(task.id, description=f"runs {len(self._done)}/{len(self._steps)}{failed}", completed=steps)
        table = Table("running", "environment", "seed", "steps", "reward so far", box=None)
        for state in states:
            reward = "" if state["reward"] is None else f"{state['reward']:g}"
            share = f"{state['steps']} of {state['timesteps']}"
            table.add_row(state["label"], state["env"], str(state["seed"]), share, reward)
        yield table
        yield self.make_tasks_table(self.tasks)


@dataclass(frozen=True)
class Pool:
    """A joblib backend with its options, and the number of parallel runs."""

    backend: str
    jobs: int
    # Raised when a worker is lost.
    lost: type[Exception]
    options: Values = field(default_factory=dict)

    def records(self, runs: Iterable[Run], work: Work) -> Iterator[Record]:
        """Yield the record of each run as soon as it is ready."""
        # With one worker, joblib would work in this process. No more runs are dispatched than may be executed at a
        # time, so that when a worker is lost, only these can be to blame.
        with parallel_config(self.backend, **self.options):
            at_once = max(self.jobs, 2)
            parallel = Parallel(at_once, pre_dispatch=self.jobs, batch_size=1, return_as="generator_unordered")
            yield from parallel(delayed(work)(run) for run in runs)


def make(runs: Iterable[Run], work: Work, pool: Pool) -> Generator[Record, None, None]:
    """Yield the record of each run as soon as it is ready.

    Runs that were in progress when a worker was lost are made again, one at a time. A run that loses its worker again
    is recorded as failed.
    """
    waiting = {run.name: run for run in runs}
    while waiting:
        begun: list[Run] = []
        try:
            for record in pool.records(_note(tuple(waiting.values()), begun), work):
                del waiting[record["name"]]
                yield record
        except pool.lost:
            suspects = [run for run in begun if run.name in waiting]
            if not suspects:
                raise
            for run in suspects:
                del waiting[run.name]
                try:
                    yield from replace(pool, jobs=1).records([run], work)
                except pool.lost as error:
                    twice = f"{error}\nThe process of this run ended twice, the second time while it was the only one."
                    yield make_record(run, "failed", {"error": twice})


def _note(runs: Iterable[Run], begun: list[Run]) -> Iterator[Run]:
    for run in runs:
        begun.append(run)
        yield run


@contextmanager
def connect(backend: str, address: str | None, jobs: int | None) -> Iterator[Pool]:
    """Yield the pool that the command line asks for.

    :param address: address of the cluster; ``None`` starts one on this machine
    :param jobs: number of parallel runs; ``None`` for one per core
    :raises SystemExit: if the package of the backend is missing, there is no such cluster, or it has too few cores
    """
    if backend == "loky":
        together = {"initializer": _end_with, "initargs": (os.getpid(),)}
        yield Pool(backend, jobs or os.cpu_count() or 1, BrokenProcessPool, together)
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
    try:
        ray = import_module("ray")
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError as error:
        raise SystemExit(f"--backend ray needs Ray: {installation('ray')}") from error

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
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise SystemExit(f"--backend dask needs Dask: {installation('dask')}") from error

    # Runs must not share a process, because PyTorch's seeds and number of threads are global.
    started = {} if address else {"n_workers": jobs or os.cpu_count(), "threads_per_worker": 1, "dashboard_address": ""}
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
