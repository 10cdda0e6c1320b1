"""Makes runs: each in a process of its own, on this machine or on a cluster, with joblib.

Workers import this module, but not the packages that draw reports.
"""

import argparse
import math
import os
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import cast

import numpy as np
import pandas as pd
import torch as th
from filelock import FileLock
from joblib import Parallel, cpu_count, delayed, parallel_config, register_parallel_backend
from joblib.externals.loky.process_executor import BrokenProcessPool
from rich import get_console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from stable_baselines3.common.vec_env import VecEnv
from threadpoolctl import threadpool_limits

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.callbacks import set_reads
from sb3_ppo_variants.collector import Reads
from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.plan import Run, say_conditions
from sb3_ppo_variants.compare.records import LAST, SPANS, Record
from sb3_ppo_variants.envs.masks import own_space, random_actions
from sb3_ppo_variants.envs.subproc import limit_cores
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError, installation
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.recipes import Episodes, Recipe, build, save
from sb3_ppo_variants.saving.checkpoint import ExactCheckpointCallback

# The logged values to keep: names of SB3 and of this package, without "train/".
RECORDED_VALUES = (
    "kl", "approx_kl", "entropy_loss", "explained_variance", "value_loss", "std", "kl_coef", "clip_range",
    "clip_fraction",
)  # fmt: skip
# The subfolder of --out for the checkpoints of --resume-every.
TO_RESUME = "to-resume"
# The seconds between two looks at the runs in progress, in a terminal and elsewhere, where each look prints lines.
LOOK, PRINT = 1.0, 60.0
Work = Callable[[Run], Record]


class RunLog(Episodes):
    """Keeps the episodes of a run, the values that it logs, and its seconds, and writes to a file how far it is."""

    remembered = ("ends", "returns", "_logged", "_spent")

    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self._file, self._due = file, 0.0
        self._logged: list[dict[str, float]] = []
        self._spent = [0.0, 0.0]
        self._on_training_start()

    def _on_training_start(self) -> None:
        # Restart the clocks, to leave out the imports of the environment, which only the first run of a process makes.
        self._clocks = np.array([time.perf_counter(), time.process_time()])

    def seconds(self) -> list[float]:
        """Measure the wall-clock and CPU seconds of the training so far."""
        before = self._clocks
        self._on_training_start()
        self._spent = (self._spent + self._clocks - before).tolist()
        return [round(spent, 2) for spent in self._spent]

    def _on_rollout_start(self) -> None:
        self.seconds()  # A checkpoint may be written now.
        # Read the values before SB3 dumps and clears them, which it does between a rollout and its update.
        values = {name: self.logger.name_to_value.get(f"train/{name}") for name in RECORDED_VALUES}
        if known := {name: float(value) for name, value in values.items() if value is not None}:
            self._logged.append({"step": self.num_timesteps, **known})
        self.tell(self.num_timesteps, self.num_timesteps / self.model._total_timesteps)

    _on_training_end = _on_rollout_start

    def tell(self, steps: int, share: float) -> None:
        """Write what share of the run is done to its file, its pace and its last returns, at most once a second."""
        if self._file is not None and time.perf_counter() >= self._due:
            returned = f"mean return {np.mean(self.returns[-LAST:]):.4g}" if self.returns else "no episode has ended"
            # Neither a full disk nor a cluster, where there is no such folder, is a reason to end a run.
            with suppress(OSError):
                self._file.write_text(f"{share} {steps / max(self.seconds()[0], 0.01):,.0f} steps/s, {returned}")
            self._due = time.perf_counter() + LOOK
            self._on_training_start()  # The time that this took is not the run's.

    def result(self, steps: int) -> Record:
        """Return what the run recorded, with rounded returns, which must be finite, and so must their sum."""
        if not math.isfinite(total := sum(map(abs, self.returns))):
            raise ValueError(f"the returns of episodes are not finite, or too large for a mean: they add up to {total}")
        digits = records.decimals(self.returns)
        returns = [round(value, digits) for value in self.returns]
        # The mean of each logged value over the updates in each span of the steps.
        frame = pd.DataFrame(self._logged, columns=["step", *RECORDED_VALUES], dtype=float)
        spans = np.ceil(frame.pop("step") * SPANS / steps).clip(1, SPANS)
        means = frame.where(np.isfinite(frame)).groupby(spans).mean().reindex(range(1, SPANS + 1))
        known = means.dropna(axis="columns", how="all")
        return {
            "score": round(float(np.mean(returns[-LAST:])), digits) if returns else None,
            "steps": steps,
            "last_returns": returns[-LAST:],
            "episodes": {"ends": self.ends, "returns": returns},
            "training": {n: [None if pd.isna(mean) else float(f"{mean:.5g}") for mean in known[n]] for n in known},
        }


set_reads(Reads.ENVS, RunLog)


def perform(
    run: Run,
    checkpoints: Path | None = None,
    to_resume: Path | None = None,
    tensorboard: Path | None = None,
    fast_envs: bool = False,
    cores: int = 1,
    progress: Path | None = None,
) -> Record:
    """Execute a run and return its record. If the run raises an error, the record contains the traceback.

    :param checkpoints: folder in which a folder with the trained model is saved
    :param to_resume: folder for the checkpoints from which a run continues, needed if its conditions ask for them
    :param tensorboard: folder in which each run gets a folder for its TensorBoard logs
    :param cores: number of cores that the fastest environments may use
    :param progress: folder in which a file of the run's name says how far it is
    """
    # Compute with one thread everywhere, because the way sums are split over threads changes their rounding.
    th.set_num_threads(1)
    log = RunLog(progress and progress / run.name)
    try:
        with threadpool_limits(limits=1), limit_cores(cores), quiet():
            made = run.recipe(fast_envs)
            if run.algorithm and tensorboard is not None:
                made.arguments["tensorboard_log"] = str(tensorboard / run.name)
            result = _train(run, made, log, checkpoints, to_resume) if run.algorithm else _act_randomly(run, made, log)
    except (Exception, SystemExit):
        result = {"error": traceback.format_exc()}
    return make_record(run, result, log.seconds())


def make_record(run: Run, result: Record, seconds: Sequence[float | None] = (None, None)) -> Record:
    """Make the record of a run with its result and the wall-clock and CPU seconds it took."""
    status = "failed" if "error" in result else "finished"
    made = {"format": records.FORMAT, "name": run.name, "status": status, **run.identity, **result}
    wall, cpu = seconds
    return {**made, "commit": records.commit(), **records.circumstances(), "wall_seconds": wall, "cpu_seconds": cpu}


def _train(run: Run, made: Recipe, log: RunLog, checkpoints: Path | None, to_resume: Path | None) -> Record:
    model = build(made, run.seed)
    env = cast(VecEnv, model.get_env())
    numerics = records.numerics(model)
    if (every := run.conditions.get("resume_every")) is None:
        model.learn(run.timesteps, log)
    else:
        assert isinstance(model, PPOBase) and to_resume is not None  # A plan refuses other algorithms.
        folder = to_resume / run.name
        try:
            model = type(model).resume(folder, env, model.device)
        except FileNotFoundError:
            pass  # The run begins.
        except DamagedFileError as error:
            fault = f"{error.fault}; remove {folder} to begin the run anew"
            raise DamagedFileError(error.file, error.part, fault) from error
        model.tensorboard_log = made.arguments.get("tensorboard_log")
        model.learn_to(run.timesteps, [log, ExactCheckpointCallback(every, folder)])
    # SB3 dumps the log before each update, so the values of the last update are still to be written.
    model.logger.dump(model.num_timesteps)
    if checkpoints is not None:
        try:
            save(model, checkpoints / run.name)
        except OSError as error:  # Such as a full disk. The result of hours is in the record.
            warnings.warn(f"the model of {run.name} could not be saved: {error}")
    env.close()
    return {**log.result(model.num_timesteps), "numerics": numerics, "vec_env": type(env.unwrapped).__name__}


def _act_randomly(run: Run, made: Recipe, log: RunLog) -> Record:
    """Act until there are enough episodes for a score, and return the result."""
    env = made.make_env(seed=run.seed)
    space = own_space(env)
    space.seed(run.seed)
    env.reset()
    steps = 0
    while len(log.returns) < LAST and steps < run.timesteps:
        steps += 1
        *_, infos = env.step(random_actions(env, space))
        log.note(steps, infos)
        log.tell(steps, len(log.returns) / LAST)
    env.close()
    return {**log.result(steps), "numerics": records.numerics(None), "vec_env": type(env.unwrapped).__name__}


def check(runs: Iterable[Run], fast_envs: bool = False) -> None:
    """Create the model of every setting in every environment once."""
    # The same hyperparameters give the same model, even under other conditions.
    for run in {(run.label, run.env, records.digest(run.identity["hyperparameters"])): run for run in runs}.values():
        try:
            with limit_cores(1), quiet():
                made = run.recipe(fast_envs)
                env = build(made, run.seed).get_env() if run.algorithm else made.make_env()
        except Exception as error:
            kind = "" if isinstance(error, ArgumentError) else f"{type(error).__name__}: "
            raise ArgumentError(f"{run.label} cannot run in {run.env}: {kind}{error}") from error
        if env is not None:
            env.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Let MuJoCo warn only once and write no ``MUJOCO_LOG.TXT``, and ignore what every environment warns of."""
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.filterwarnings("once", message="MuJoCo: ")
        # SB3 asks every environment for its render mode, and users cannot change gymnasium's models.
        for message in (".*render_mode", ".* is out of date", "MuJoCo: compiler attribute"):
            warnings.filterwarnings("ignore", message=message)
        if find_spec("mujoco"):
            import mujoco

            mujoco.set_mju_user_warning(lambda message: warnings.warn(f"MuJoCo: {message}"))
            stack.callback(mujoco.set_mju_user_warning, None)
        yield


@dataclass(frozen=True)
class Pool:
    """A joblib backend, its parallel runs, the error for a lost worker, options, and the cores of each run."""

    backend: str
    jobs: int
    lost: type[Exception]
    options: Values = field(default_factory=dict)
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
    """Yield the record of each run when it is ready; runs in progress when a worker is lost have failed."""
    waiting = {run.name: run for run in runs}
    while waiting:
        rest = iter(tuple(waiting.values()))
        try:
            for record in pool.records(rest, work):
                del waiting[record["name"]]
                yield record
        except pool.lost as error:
            # The runs that have not begun are still in the iterator.
            begun = waiting.keys() - {run.name for run in rest}
            if not begun:
                raise
            for name in begun:
                reason = f"{error}\nA process ended while this run and {len(begun) - 1} others were in progress."
                yield make_record(waiting.pop(name), {"error": reason})


@contextmanager
def connect(backend: str, address: str | None, jobs: int | None) -> Iterator[Pool]:
    """Yield the pool that the command line asks for, with a cluster on this machine if there is no address.

    :raises OSError: if no cluster answers
    :raises SystemExit: if the package of the backend is missing, or a cluster has too few cores
    """
    package = {"ray": "ray", "dask": "distributed"}.get(backend)
    if package is None:
        together = {"initializer": _end_with, "initargs": (os.getpid(),)}
        jobs = jobs or cpu_count()
        yield Pool(backend, jobs, BrokenProcessPool, together, max(1, cpu_count() // jobs))
    elif find_spec(package) is None:
        raise SystemExit(f"--backend {backend} needs {backend.capitalize()}: {installation(backend)}")
    else:
        yield from (_ray if backend == "ray" else _dask)(address, jobs)


def _end_with(parent: int) -> None:
    """End this process soon after its parent ends, because a parent that is killed cannot end its workers."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
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
    with ray.init(address=address, log_to_driver=False):
        cores = int(ray.cluster_resources().get("CPU", 0))
        # Ray's pool has a core for each worker, and with one worker joblib would not use the pool.
        if cores < max(jobs or 1, 2):
            raise SystemExit(f"the cluster has too few cores, {cores} instead of {max(jobs or 1, 2)}: add workers")
        yield Pool("ray", jobs or cores, ray.exceptions.RayError)


def _dask(address: str | None, jobs: int | None) -> Iterator[Pool]:
    distributed = import_module("distributed")

    # Runs must not share a process, because PyTorch's seeds and number of threads are global.
    started = {} if address else {"n_workers": jobs or cpu_count(), "threads_per_worker": 1, "dashboard_address": ""}
    with distributed.Client(address, **started) as client:
        # Workers of a cluster that has just been started may join it some seconds later.
        client.wait_for_workers(1, timeout=60)
        yield Pool("dask", jobs or sum(client.ncores().values()), distributed.KilledWorker)


def find_missing(options: argparse.Namespace, planned: Sequence[Run]) -> list[Run]:
    """Show the plan, and check the missing runs."""
    found = records.read(*filter(Path.is_dir, [options.out / records.FOLDER]))
    status = {record["name"]: record["status"] for record in found}
    missing = [run for run in planned if status.get(run.name) != "finished"]
    trainings = [run for run in planned if run.algorithm]
    forms = {"setting": "{.label}", "environment": "{.env}", "seed": "{.seed}"}
    shown = {name: [*dict.fromkeys(map(form.format, trainings))] for name, form in forms.items()}
    if len(conditions := {records.digest(run.conditions): run.conditions for run in trainings}) > 1:
        shown["condition"] = [say_conditions(each) or "no protocol" for each in conditions.values()]
    for name, values in shown.items():
        print(f"{name}s: {'; '.join(values)}")
    print(f"steps of a run: {'; '.join(dict.fromkeys(f'{run.timesteps:,}' for run in trainings))}")
    factors = " x ".join(f"{len(values)} {name}{'s' * (len(values) > 1)}" for name, values in shown.items())
    print(
        f"{factors} = {len(trainings)} runs, and {len(planned) - len(trainings)} of the random policy: "
        f"{len(planned) - len(missing)} are finished, {len(missing)} to make, "
        f"{sum(status.get(run.name) == 'failed' for run in missing)} of which failed before"
    )
    notes = [f"{run.label} in {run.env} does not use {', '.join(run.unused)}" for run in planned if run.unused]
    if begun := sum((options.out / TO_RESUME / run.name).exists() for run in missing):
        notes.append(f"runs that continue from a checkpoint: {begun}")
    for note in dict.fromkeys(notes):
        print(f"- {note}")
    check(missing, options.fast_envs)
    return missing


@contextmanager
def following(folder: Path, waiting: Mapping[str, Run]) -> Iterator[None]:
    """Show how far waiting runs are that have a file in a folder: in lines that move, or in new ones each minute."""
    name = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
    columns = name, BarColumn(10), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.fields[says]}")
    console, ended = get_console(), Event()
    moves = console.is_interactive
    bars = Progress(*columns, console=console, refresh_per_second=1, transient=True, disable=not moves, expand=True)
    whole = bars.add_task("all runs", total=len(waiting), says="")
    of = {name: bars.add_task(str(run), total=1, says="", visible=False) for name, run in waiting.items()}

    def follow() -> None:
        while not ended.wait(LOOK if moves else PRINT):
            shares = []
            for file in folder.iterdir():
                share, _, says = file.read_text().partition(" ")
                # It is empty while it is written.
                if says and (run := waiting.get(file.name)):
                    shares.append(min(float(share), 1))
                    bars.update(of[run.name], completed=shares[-1], says=says, visible=True)
                    if not moves:
                        print(f"{run}: {shares[-1]:.0%}, {says}", flush=True)
            for name in of.keys() - waiting.keys():
                bars.update(of[name], visible=False)
            bars.update(whole, completed=len(of) - len(waiting) + sum(shares))

    thread = Thread(target=follow, daemon=True)
    with bars:
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def make(options: argparse.Namespace, missing: list[Run]) -> int:
    """Make the missing runs, record each when it ends, and return how many failed."""
    out, tensorboard, failed = options.out.absolute(), options.tensorboard and options.tensorboard.absolute(), 0
    for folder in filter(None, [out / records.FOLDER, tensorboard]):
        folder.mkdir(parents=True, exist_ok=True)
    for left in (out / records.FOLDER).glob("*.tmp"):
        left.unlink()  # A command that was killed left it.
    folders = {"checkpoints": out / "checkpoints" if options.checkpoints else None, "to_resume": out / TO_RESUME}
    given = {**folders, "tensorboard": tensorboard, "fast_envs": options.fast_envs}
    waiting = {run.name: run for run in missing}
    with (
        FileLock(out / ".lock", timeout=0),
        TemporaryDirectory(prefix="sb3_ppo_variants-", ignore_cleanup_errors=True) as progress,
        connect(options.backend, options.address, options.jobs) as pool,
        following(Path(progress), waiting),
    ):
        work = partial(perform, **given, cores=pool.cores, progress=Path(progress))
        # Closing the generator ends the workers, even if this process is interrupted.
        with closing(make_records(missing, work, pool)) as made:
            for number, record in enumerate(made, start=1):
                records.write(out / records.FOLDER, record)
                result = f"score {record.get('score')}"
                if record["status"] == "failed":
                    failed += 1
                    result = f"failed: {record['error'].strip().splitlines()[-1]}"
                else:
                    shutil.rmtree(out / TO_RESUME / record["name"], ignore_errors=True)
                print(f"{number}/{len(missing)} {waiting.pop(record['name'])}: {result}", flush=True)
    return failed
