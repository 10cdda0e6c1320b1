"""The command ``compare``: it makes the runs that have no record yet, and writes the report."""

import argparse
import shutil
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from sb3_ppo_variants.compare import BASELINE, records, runs
from sb3_ppo_variants.compare.plan import (
    Conditions,
    Config,
    Plan,
    Run,
    assignments,
    make_plan,
    merge_plans,
    read_config,
    read_file,
    read_setting,
)
from sb3_ppo_variants.compare.report import RECORDS, write_report
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
    try:
        missing = _find_missing(options, make_plans(options))
        if options.dry_run:
            return 0
        for folder in filter(None, [options.out / RECORDS, options.tensorboard]):
            folder.mkdir(parents=True, exist_ok=True)
        with FileLock(options.out / LOCK, timeout=0):
            failed = _make(options, missing) if missing else 0
        write_report(options.out, *records.read(options.out / RECORDS))
    except Timeout:
        raise SystemExit(f"--out {options.out} is in use by another command") from None
    except KeyboardInterrupt:
        print("Interrupted. Finished runs are recorded; the same command continues.")
        return INTERRUPTED
    return int(failed > 0)


def make_plans(options: argparse.Namespace) -> Plan:
    """Plan the runs that the command line asks for, under all of its conditions."""
    if options.tensorboard and not find_spec("tensorboard"):
        raise SystemExit(f"--tensorboard needs the package tensorboard: {installation('examples')}")
    if options.address is not None and options.backend == "loky":
        raise ArgumentError(f"--address {options.address} is for --backend ray or dask; loky needs none")
    if options.jobs is not None and options.jobs < 1:
        raise ArgumentError(f"--jobs must be at least 1, not {options.jobs}")
    config = Config() if options.config is None else read_config(options.config)
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
    found, problems = records.read(*filter(Path.is_dir, [options.out / RECORDS]))
    status = {record["name"]: record["status"] for record in found}
    missing = [run for run in plan.runs if status.get(run.name) != "finished"]
    trainings = [run for run in plan.runs if run.algorithm]
    shown = {"settings": "{.label}", "environments": "{.env}", "seeds": "{.seed}", "steps of a run": "{.timesteps:,}"}
    for name, form in shown.items():
        print(f"{name}: {'; '.join(dict.fromkeys(map(form.format, trainings)))}")
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


def _make(options: argparse.Namespace, missing: list[Run]) -> int:
    """Make the missing runs, record each when it ends, and return how many failed."""
    for left in (options.out / RECORDS).glob("*.tmp"):
        left.unlink()  # A command that was killed left it.
    out, failed = options.out.absolute(), 0
    work = partial(
        runs.perform,
        checkpoints=out / CHECKPOINTS if options.checkpoints else None,
        to_resume=out / TO_RESUME,
        tensorboard=options.tensorboard and options.tensorboard.absolute(),
        fast_envs=options.fast_envs,
    )
    with (
        runs.connect(options.backend, options.address, options.jobs) as pool,
        tqdm(total=len(missing), unit="run", disable=None) as bar,
        # Closing the generator ends the workers, even if this process is interrupted.
        closing(runs.make_records(missing, partial(work, cores=pool.cores), pool)) as made,
    ):
        for number, record in enumerate(made, start=1):
            records.write(out / RECORDS, record)
            result = f"score {record.get('score')}"
            if record["status"] == "failed":
                failed += 1
                result = f"failed: {record['error'].strip().splitlines()[-1]}"
            else:
                shutil.rmtree(out / TO_RESUME / record["name"], ignore_errors=True)
            of_run = f"{record['label']}, {record['env']}, seed {record['seed']}"
            bar.write(f"{number}/{len(missing)} {of_run}: {result}")
            bar.update()
    return failed
