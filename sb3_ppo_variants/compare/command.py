"""Compare algorithms over environments and seeds (settings x environments x seeds), resumably, and write a report."""

import argparse
import math
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from filelock import FileLock, Timeout
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sb3_ppo_variants.compare import backends, records
from sb3_ppo_variants.compare.config import Config, read_config
from sb3_ppo_variants.compare.execution import Tracking, check, perform
from sb3_ppo_variants.compare.options import BASELINE
from sb3_ppo_variants.compare.plan import Plan, Run, make_plan, merge_plans
from sb3_ppo_variants.compare.records import RANDOM, Record
from sb3_ppo_variants.compare.report import LOCK, RECORDS, RUNNING, read_states, write_report
from sb3_ppo_variants.compare.settings import Conditions, assignments, read_file, read_setting, write_option
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.plain import Values

CHECKPOINTS = "checkpoints"
# The folder for the checkpoints of --resume-every.
TO_RESUME = "to-resume"
INTERRUPTED = 130


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
            _find_missing(options, plan)
            return 0
        _make_folders(f"--out {options.out}", options.out / RECORDS, options.out / RUNNING)
        if boards is not None:
            _make_folders(f"--tensorboard {options.tensorboard}", boards)
        with FileLock(options.out / LOCK, timeout=0):
            if options.files:
                _copy(options)
            failed = _make(options, plan, _find_missing(options, plan), tracking)
        write_report(options.out, *records.load_records(options.out / RECORDS))
    except Timeout:
        raise SystemExit(f"--out {options.out} is in use by another command") from None
    except KeyboardInterrupt:
        print("Interrupted. Finished runs are recorded; the same command continues.")
        return INTERRUPTED
    return int(failed > 0)


def _make_folders(option: str, *folders: Path) -> None:
    """Make folders if they are missing, and check that files can be written to them."""
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ArgumentError(f"{option} cannot be written to: {error}") from error


def make_plans(options: argparse.Namespace) -> Plan:
    """Plan the runs that the command line asks for, under all of its conditions."""
    config = Config() if options.config is None else read_config(options.config)
    names = ("protocol", "hyperparams", "entry", "normalize", "anneal", "resume_every")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if len(config.conditions) > 1 and (given or options.param):
        words = [" ".join(write_option(name, value)) for name, value in given.items()]
        words += [f"-p {text}" for text in options.param]
        raise ArgumentError(f"{', '.join(words)} cannot change --config {options.config}, which has several conditions")
    if options.address is not None and options.backend == "loky":
        raise ArgumentError(f"--address {options.address} is for --backend ray or dask; loky needs none")
    if options.jobs is not None and options.jobs < 1:
        raise ArgumentError(f"--jobs must be at least 1, not {options.jobs}")
    texts = options.algos or config.settings
    if options.algos is None and options.protocol not in (None, "sb3"):
        # SB3's PPO cannot follow the paper's protocols, and runs under its own.
        texts = [f"{BASELINE}:protocol=sb3" if text == BASELINE else text for text in texts]
    settings = [read_setting(text) for text in texts]
    seeds = config.seeds if options.seeds is None else options.seeds
    conditions = [_change(each, given, options) for each in config.conditions]
    return merge_plans(make_plan(settings, options.envs or config.envs, seeds, each) for each in conditions)


def _change(conditions: Conditions, given: Values, options: argparse.Namespace) -> Conditions:
    changes = {name: value for name, value in given.items() if name != "hyperparams"}
    if options.protocol is not None:
        changes = {"entry": "mujoco", "normalize": None, "anneal": None, **changes}
    if options.timesteps is not None:
        changes["timesteps"] = options.timesteps
    if options.param:
        changes["parameters"] = {**conditions.parameters, **assignments(",".join(options.param))}
    if options.hyperparams is not None:
        # A file has entries of its own, so no entry is implied.
        changes |= {"entry": options.entry, "file": read_file(options.hyperparams)}
    return replace(conditions, **changes)


def _find_missing(options: argparse.Namespace, plan: Plan) -> list[Run]:
    """Show the plan and its progress, and check the missing runs."""
    found, problems = records.load_records(options.out / RECORDS, options.files)
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
    finished = [run for run in trainings if status.get(run.name) == "finished"]
    unsaved = [run for run in finished if not (options.out / CHECKPOINTS / run.name).exists()]
    for option, runs in {"checkpoints": unsaved, "tensorboard": finished, "wandb": finished}.items():
        if getattr(options, option) and runs:
            notes.append(f"finished runs, which are not made again for --{option}: {len(runs)}")
    if begun := sum((options.out / TO_RESUME / run.name).exists() for run in missing):
        notes.append(f"runs that continue from a checkpoint: {begun}")
    for note in notes:
        print(f"- {note}")
    check(missing, options.fast_envs)
    return missing


def _copy(options: argparse.Namespace) -> None:
    found, there = records.read(options.out / RECORDS)[0], records.load_records(None, options.files)[0]
    here = {record["name"] for record in found if record["status"] == "finished"}
    with records.Writer(options.out / RECORDS) as writer:
        writer.write(*(each for each in there if each["status"] == "finished" and each["name"] not in here))


def _make(options: argparse.Namespace, plan: Plan, missing: list[Run], tracking: Tracking) -> int:
    """Make the missing runs, record each when it ends, and return how many failed."""
    states = options.out / RUNNING
    # Left over from a command that was killed. Names of runs end with a digest.
    for left in [*states.glob(f"*-{'[0-9a-f]' * 12}.*"), *(options.out / RECORDS).glob("*.tmp")]:
        left.unlink()
    if not missing:
        return 0
    checkpoints = (options.out / CHECKPOINTS).absolute() if options.checkpoints else None
    to_resume = (options.out / TO_RESUME).absolute()
    described = {"states": states.absolute(), "checkpoints": checkpoints, "to_resume": to_resume, "tracking": tracking}
    work = partial(perform, fast_envs=options.fast_envs, **described)
    failed = 0
    with (
        records.Writer(options.out / RECORDS) as writer,
        backends.connect(options.backend, options.address, options.jobs) as pool,
        Display(plan.runs, missing, states, pool.jobs) as display,
        # Closing the generator ends the workers, even if this process is interrupted.
        closing(backends.make_records(missing, partial(work, cores=pool.cores), pool)) as made,
    ):
        for record in made:
            failed += record["status"] == "failed"
            # A process that was killed leaves its state.
            (states / f"{record['name']}.json").unlink(missing_ok=True)
            for written in writer.write(record):
                display.report(written)
                if written["status"] == "finished":
                    shutil.rmtree(to_resume / written["name"], ignore_errors=True)
            if writer.problem:
                display.tell(writer.problem, red=True)
    return failed


# How far a comparison is, and how long the rest of it takes


class TimeLeft:
    """Estimates the time to the end from the wall-clock times of the runs that have finished since the command began.

    Runs that finished earlier do not count: they may be those of another machine, or of another number of jobs.

    :param missing: the runs to make
    :param jobs: how many of them are in progress at a time
    """

    def __init__(self, missing: Iterable[Run], jobs: int):
        # The random policy takes hardly any time.
        self._left = {run.name: run for run in missing if run.algorithm}
        self._jobs = jobs
        # The seconds that each step of a finished run took, with the setting and the environment of the run.
        self._known: list[tuple[str, str, float]] = []

    def note(self, record: Record) -> None:
        """Note that a run has ended. Only the time of one that finished says how long others take."""
        run = self._left.pop(record["name"], None)
        seconds = record["wall_seconds"]
        if run is not None and seconds is not None and record["status"] == "finished":
            self._known.append((run.label, run.env, seconds / run.timesteps))

    def seconds(self, steps: Mapping[str, int]) -> float | None:
        """Estimate the seconds to the end, or ``None`` before any run has finished.

        The rest is as fast as if it were spread evenly over the jobs, or takes as long as its longest run.

        :param steps: the steps that runs in progress have done, by name
        """
        if not self._known:
            return None
        rest = [
            max(run.timesteps - steps.get(name, 0), 0) * self._seconds_per_step(run) for name, run in self._left.items()
        ]
        return max(sum(rest) / self._jobs, max(rest, default=0.0))

    def _seconds_per_step(self, run: Run) -> float:
        """Take the mean over the runs of the setting in the environment; if there are none, over more of them."""
        same_env = [known for known in self._known if known[1] == run.env]
        alike = [known for known in same_env if known[0] == run.label] or same_env or self._known
        return sum(seconds for *_, seconds in alike) / len(alike)


def duration(seconds: float) -> str:
    """Write a duration with one or two units, rounded up."""
    minutes = math.ceil(seconds / 60)
    if minutes < 2:
        return f"{math.ceil(seconds)} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"


class Display(Progress):
    """A line for each run that has ended and, in a terminal, a bar for all of them and a row for each in progress."""

    def __init__(self, runs: Iterable[Run], missing: Collection[Run], states: Path, jobs: int):
        self._steps = {run.name: run.timesteps if run.algorithm else 0 for run in runs}
        self._done = self._steps.keys() - {run.name for run in missing}
        self._failed = 0
        self._states = states
        self._estimate = TimeLeft(missing, jobs)
        console = Console()
        super().__init__(
            TextColumn("{task.description}"), BarColumn(None), "{task.percentage:3.0f}%",
            TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
            console=console, disable=not console.is_terminal, refresh_per_second=2,
        )  # fmt: skip
        self.add_task("", total=max(1, sum(self._steps.values())), completed=self._finished_steps(), left="")

    def report(self, record: Record) -> None:
        """Report a run that finished or failed, and how long the others take."""
        failed = record["status"] == "failed"
        self._done.add(record["name"])
        self._failed += failed
        self._estimate.note(record)
        what = "failed: " + record["error"].strip().splitlines()[-1] if failed else f"score {record['score']}"
        counted = f"{len(self._done)}/{len(self._steps)}"
        left = self._left(read_states(self._states))
        rest = left and f"; {left}"
        self.tell(f"{counted} {record['label']}, {record['env']}, seed {record['seed']}: {what}{rest}", red=failed)

    def tell(self, text: str, red: bool) -> None:
        """Print a line, in red if it needs the user's attention."""
        self.console.print(text, style="red" if red else None, highlight=False, markup=False, soft_wrap=True)

    def _left(self, states: Mapping[str, Values]) -> str:
        left = self._estimate.seconds({name: state["steps"] for name, state in states.items()})
        return f"about {duration(left)} left" if left else ""

    def _finished_steps(self) -> int:
        return sum(steps for name, steps in self._steps.items() if name in self._done)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield a table with a row for each run in progress, and the bar."""
        states = read_states(self._states)
        failed = f", {self._failed} failed" if self._failed else ""
        steps = self._finished_steps() + sum(state["steps"] for state in states.values() if state["label"] != RANDOM)
        counted = f"runs {len(self._done)}/{len(self._steps)}{failed}"
        for task in self.tasks:
            self.update(task.id, description=counted, completed=steps, left=self._left(states))
        table = Table("running", "environment", "seed", "steps", "reward so far", box=None)
        for state in states.values():
            reward = "" if state["reward"] is None else f"{state['reward']:g}"
            share = f"{state['steps']} of {state['timesteps']}"
            table.add_row(state["label"], state["env"], str(state["seed"]), share, reward)
        yield table
        yield self.make_tasks_table(self.tasks)
