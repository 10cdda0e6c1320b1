"""Compare algorithms over environments and seeds (settings x environments x seeds), resumably, and write a report."""

import argparse
import shutil
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import Progress

from sb3_ppo_variants.compare import records, runs
from sb3_ppo_variants.compare.options import BASELINE
from sb3_ppo_variants.compare.plan import Plan, Run, make_plan, merge_plans
from sb3_ppo_variants.compare.records import Record
from sb3_ppo_variants.compare.report import RECORDS, write_report
from sb3_ppo_variants.compare.settings import (
    Conditions,
    Config,
    assignments,
    read_config,
    read_file,
    read_setting,
)
from sb3_ppo_variants.errors import ArgumentError, installation

# Subfolders of --out: for trained models, and for the checkpoints of --resume-every.
CHECKPOINTS, TO_RESUME = "checkpoints", "to-resume"
# A file in the same folder, which is locked while runs are made.
LOCK = ".lock"
INTERRUPTED = 130


def run(options: argparse.Namespace) -> int:
    """Make the runs that have no record or failed before, record each when it ends, and write the report.

    :return: 0 if all runs are finished, 1 if some failed, 130 if interrupted
    """
    boards = options.tensorboard and options.tensorboard.absolute()
    if boards and not find_spec("tensorboard"):
        raise SystemExit(f"--tensorboard needs the package tensorboard: {installation('examples')}")
    try:
        plan = make_plans(options)
        if options.dry_run:
            _find_missing(options, plan)
            return 0
        for option, folder in (("--out", options.out / RECORDS), ("--tensorboard", boards)):
            if folder is not None:
                _make_folder(option, folder)
        with FileLock(options.out / LOCK, timeout=0):
            if options.files:
                _copy(options)
            failed = _make(options, _find_missing(options, plan), boards)
        write_report(options.out, *records.load_records(options.out / RECORDS))
    except Timeout:
        raise SystemExit(f"--out {options.out} is in use by another command") from None
    except KeyboardInterrupt:
        print("Interrupted. Finished runs are recorded; the same command continues.")
        return INTERRUPTED
    return int(failed > 0)


def _make_folder(option: str, folder: Path) -> None:
    """Make a folder if it is missing, and check that files can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ArgumentError(f"{option} {folder} cannot be written to: {error}") from error


def make_plans(options: argparse.Namespace) -> Plan:
    """Plan the runs that the command line asks for, under all of its conditions."""
    config = Config() if options.config is None else read_config(options.config)
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
    conditions = [_change(each, options) for each in config.conditions]
    return merge_plans(make_plan(settings, options.envs or config.envs, seeds, each) for each in conditions)


def _change(conditions: Conditions, options: argparse.Namespace) -> Conditions:
    """Change conditions by the options that are given."""
    names = ("timesteps", "protocol", "entry", "normalize", "anneal", "resume_every")
    changes = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.protocol is not None:
        changes = {"entry": "mujoco", "normalize": None, "anneal": None, **changes}
    if options.hyperparams is not None:
        # A file has entries of its own, so no entry is implied.
        changes |= {"entry": options.entry, "file": read_file(options.hyperparams)}
    if options.param:
        changes["parameters"] = {**conditions.parameters, **assignments(",".join(options.param))}
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
    if begun := sum((options.out / TO_RESUME / run.name).exists() for run in missing):
        notes.append(f"runs that continue from a checkpoint: {begun}")
    for note in notes:
        print(f"- {note}")
    runs.check(missing, options.fast_envs)
    return missing


def _copy(options: argparse.Namespace) -> None:
    """Copy the finished runs of exported files that have no finished record yet."""
    found, there = records.read(options.out / RECORDS)[0], records.load_records(None, options.files)[0]
    here = {record["name"] for record in found if record["status"] == "finished"}
    copied = (each for each in there if each["status"] == "finished" and each["name"] not in here)
    records.write(options.out / RECORDS, *copied)


def _make(options: argparse.Namespace, missing: list[Run], boards: Path | None) -> int:
    """Make the missing runs, record each when it ends, and return how many failed."""
    for left in (options.out / RECORDS).glob("*.tmp"):
        left.unlink()  # A command that was killed left it.
    if not missing:
        return 0
    checkpoints = (options.out / CHECKPOINTS).absolute() if options.checkpoints else None
    to_resume = (options.out / TO_RESUME).absolute()
    work = partial(runs.perform, checkpoints=checkpoints, to_resume=to_resume, tensorboard=boards)
    written: list[Record] = []
    failed, console = 0, Console()
    with (
        runs.connect(options.backend, options.address, options.jobs) as pool,
        Progress(console=console, disable=not console.is_terminal) as bar,
        # Closing the generator ends the workers, even if this process is interrupted.
        closing(runs.make_records(missing, partial(work, fast_envs=options.fast_envs, cores=pool.cores), pool)) as made,
    ):
        task = bar.add_task("runs", total=len(missing))
        for record in made:
            failed += record["status"] == "failed"
            records.write(options.out / RECORDS, record)
            written.append(record)
            bar.advance(task)
            print(f"{len(written)}/{len(missing)} {_describe(record)}{_say_left(missing, written, pool.jobs)}")
            if record["status"] == "finished":
                shutil.rmtree(to_resume / record["name"], ignore_errors=True)
    return failed


def _describe(record: Record) -> str:
    result = f"score {record.get('score')}"
    if record["status"] == "failed":
        result = "failed: " + record["error"].strip().splitlines()[-1]
    return f"{record['label']}, {record['env']}, seed {record['seed']}: {result}"


def _say_left(missing: list[Run], ended: list[Record], jobs: int) -> str:
    """Estimate the time that the other runs take, if runs that have finished since the command began say so."""
    names = {record["name"] for record in ended}
    rest = sum(run.timesteps for run in missing if run.algorithm and run.name not in names)
    known = [record for record in ended if record["algorithm"] and record["status"] == "finished"]
    if not (rest and known):
        return ""
    seconds = sum(record["wall_seconds"] or 0 for record in known) / sum(record["steps"] for record in known)
    return f"; about {timedelta(seconds=round(rest * seconds / jobs))} left"
