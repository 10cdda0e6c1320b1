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

from sb3_ppo_variants.compare import BASELINE, plan, records, runs
from sb3_ppo_variants.compare.report import RECORDS, write_report
from sb3_ppo_variants.errors import ArgumentError, installation

# Subfolders of --out: for trained models, and for the checkpoints of --resume-every.
CHECKPOINTS, TO_RESUME = "checkpoints", "to-resume"
INTERRUPTED = 130


def run(options: argparse.Namespace) -> int:
    """Make the runs that have no record or failed before, record each when it ends, and write the report.

    :return: 0 if all runs are finished, 1 if some failed, 130 if interrupted
    """
    try:
        missing = _find_missing(options, plan_runs(options))
        if options.dry_run:
            return 0
        for folder in filter(None, [options.out / RECORDS, options.tensorboard]):
            folder.mkdir(parents=True, exist_ok=True)
        with FileLock(options.out / ".lock", timeout=0):
            failed = _make(options, missing) if missing else 0
        write_report(options.out, *records.read(options.out / RECORDS))
    except Timeout:
        raise SystemExit(f"--out {options.out} is in use by another command") from None
    except KeyboardInterrupt:
        print("Interrupted. Finished runs are recorded; the same command continues.")
        return INTERRUPTED
    return int(failed > 0)


def plan_runs(options: argparse.Namespace) -> plan.Plan:
    """Plan the runs that the command line asks for."""
    if options.tensorboard and not find_spec("tensorboard"):
        raise SystemExit(f"--tensorboard needs the package tensorboard: {installation('examples')}")
    if options.address is not None and options.backend == "loky":
        raise ArgumentError(f"--address {options.address} is for --backend ray or dask; loky needs none")
    if options.jobs is not None and options.jobs < 1:
        raise ArgumentError(f"--jobs must be at least 1, not {options.jobs}")
    config = plan.Config() if options.config is None else plan.read_config(options.config)
    texts = options.algos or config.settings
    if options.algos is None and options.protocol not in (None, "sb3"):
        # SB3's PPO cannot follow the paper's protocols, and runs under its own.
        texts = [f"{BASELINE}:protocol=sb3" if text == BASELINE else text for text in texts]
    seeds = config.seeds if options.seeds is None else options.seeds
    conditions = [_change(each, options) for each in config.conditions]
    settings = [plan.read_setting(text) for text in texts]
    return plan.make_plan(settings, options.envs or config.envs, seeds, conditions)


def _change(conditions: plan.Conditions, options: argparse.Namespace) -> plan.Conditions:
    """Change conditions by the options that are given."""
    if options.hyperparams is not None:
        conditions = replace(conditions, file=options.hyperparams, entry=None)
    if options.protocol is not None:
        conditions = conditions.under(options.protocol)
    names = ("timesteps", "entry", "normalize", "anneal", "resume_every")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.param:
        given["parameters"] = conditions.parameters | plan.assignments(",".join(options.param))
    return replace(conditions, **given)


def _find_missing(options: argparse.Namespace, planned: plan.Plan) -> list[plan.Run]:
    """Show the plan and its progress, and check the missing runs."""
    found, problems = records.read(*filter(Path.is_dir, [options.out / RECORDS]))
    status = {record["name"]: record["status"] for record in found}
    missing = [run for run in planned.runs if status.get(run.name) != "finished"]
    trainings = [run for run in planned.runs if run.algorithm]
    shown = {"settings": "{.label}", "environments": "{.env}", "seeds": "{.seed}", "steps of a run": "{.timesteps:,}"}
    for name, form in shown.items():
        print(f"{name}: {'; '.join(dict.fromkeys(map(form.format, trainings)))}")
    print(
        f"{len(planned.runs)} runs, {len(planned.runs) - len(trainings)} of them of the random policy: "
        f"{len(planned.runs) - len(missing)} are finished, {len(missing)} to make, "
        f"{sum(status.get(run.name) == 'failed' for run in missing)} of which failed before"
    )
    notes = [*planned.notes, *problems]
    if begun := sum((options.out / TO_RESUME / run.name).exists() for run in missing):
        notes.append(f"runs that continue from a checkpoint: {begun}")
    for note in notes:
        print(f"- {note}")
    runs.check(missing, options.fast_envs)
    return missing


def _make(options: argparse.Namespace, missing: list[plan.Run]) -> int:
    """Make the missing runs, record each when it ends, and return how many failed."""
    for left in (options.out / RECORDS).glob("*.tmp"):
        left.unlink()  # A command that was killed left it.
    out, failed = options.out.absolute(), 0
    perform = partial(
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
        closing(runs.make_records(missing, partial(perform, cores=pool.cores), pool)) as made,
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
