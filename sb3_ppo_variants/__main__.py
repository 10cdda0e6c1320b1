"""Compare PPO variants with each other and with other algorithms, and report the results."""

import argparse
import sys
from pathlib import Path
from typing import Any

from sb3_ppo_variants import __version__
from sb3_ppo_variants.commandline import errors_in_a_line, whole_number
from sb3_ppo_variants.compare import ALGORITHM_PATHS, DEFAULT_ALGORITHMS, EXAMPLE, PRESETS
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes import PROTOCOLS

FIRST_LINES = {name: path.read_text("utf-8").partition("\n")[0].lstrip("# ") for name, path in PRESETS.items()}
# For each group of a command's options: their names, what argparse's add_argument takes, and what they do.
Options = dict[str, list[tuple[str, dict[str, Any], str]]]
# An option with several values, which may also be given several times.
SEVERAL = {"action": "extend", "nargs": "+"}
SWITCH = {"action": argparse.BooleanOptionalAction}
WHOLE = {"type": whole_number}
DIR = {"type": Path, "metavar": "DIR"}
TRUE = {"action": "store_true"}
OUT = ("--out", {**DIR, "default": Path("runs/compare")}, "folder for records and report (default: %(default)s)")


# The commands import what their help does without, of which some packages are optional.


def compare(options: argparse.Namespace) -> int:
    """Make the runs that have no record or failed before, record each when it ends, and write the report.

    :return: 0 if all runs are finished, 1 if some failed, 130 if interrupted
    """
    from filelock import Timeout

    from sb3_ppo_variants.compare import plan, records, report, runs

    try:
        missing = runs.find_missing(options, plan.plan_runs(options))
        if options.dry_run:
            return 0
        failed = runs.make(options, missing) if missing else 0
        report.write_report(options.out, records.read(options.out / records.FOLDER), config=options.config)
    except Timeout:
        raise SystemExit(f"--out {options.out} is in use by another command") from None
    except KeyboardInterrupt:
        print("Interrupted. Finished runs are recorded; the same command continues.")
        return 130
    return int(failed > 0)


COMPARE: Options = {
    "what to compare": [
        ("--config", {"metavar": "NAME"}, "a comparison in a YAML file of your own, or one of the package that is "
         "listed below; other options change it"),
        ("--algos", {**SEVERAL, "metavar": "ALGO"}, f"{', '.join(ALGORITHM_PATHS)} or module:Class, optionally with "
         f"arguments: {EXAMPLE} (default: {' '.join(DEFAULT_ALGORITHMS)})"),
        ("--envs", {**SEVERAL, "metavar": "ID"}, "environment ids (default: CartPole-v1)"),
        ("--seeds", {**WHOLE, "metavar": "N"}, "number of seeds: 0 to N-1 (default: 3)"),
    ],
    "conditions": [
        ("--timesteps", WHOLE, "environment steps of a run (default: from the hyperparameters)"),
        ("--protocol", {"choices": [*PROTOCOLS]}, "protocol of the paper's experiments; implies --entry mujoco, "
         "unless there are --hyperparams"),
        ("--hyperparams", {"metavar": "FILE"}, "YAML file in the RL Zoo's format"),
        ("--entry", {}, "hyperparameters for all environments, such as mujoco (default: each its own)"),
        ("-p", {"action": "append", "default": [], "dest": "param", "metavar": "NAME=VALUE"}, "change one of them"),
        ("--normalize", SWITCH, "normalise with VecNormalize"),
        ("--anneal", SWITCH, "anneal the step size to 0"),
        ("--resume-every", {**WHOLE, "metavar": "STEPS"}, "checkpoint each run every STEPS steps, so that the same "
         "command resumes interrupted runs"),
    ],
    "where to run": [
        OUT,
        ("--jobs", WHOLE, "number of parallel runs (default: one per core)"),
        ("--backend", {"choices": ("loky", "ray", "dask"), "default": "loky"}, "joblib backend (default: local "
         "processes)"),
        ("--address", {}, "address of the Ray or Dask cluster (default: start one here)"),
        ("--fast-envs", TRUE, "use the fastest environments with the same results, bit for bit"),
        ("--checkpoints", TRUE, "save each trained model in the --out folder"),
        ("--tensorboard", DIR, "folder for TensorBoard logs"),
        ("--dry-run", TRUE, "show the plan and stop"),
    ],
}  # fmt: skip


def report(options: argparse.Namespace) -> int:
    """Write the report of the existing records."""
    from sb3_ppo_variants.compare import records, report

    folder = options.out / records.FOLDER
    if not options.files and not folder.is_dir():
        raise ArgumentError(f"--out {options.out} has no records: create some with compare, or pass their folder")
    found = records.read(*(options.files or [folder]))
    if options.export is not None:
        records.pack(found, options.export)
        print(f"Records: {options.export}")
    given = (options.baseline, options.add, options.names, options.config, options.paper)
    report.write_report(options.out, found, *given)
    return 0


REPORT: Options = {
    "what to report": [
        OUT,
        ("--from", {**SEVERAL, "type": Path, "dest": "files", "metavar": "FILE"}, "report these exported records "
         "instead of those in --out"),
        ("--baseline", {"metavar": "SETTING"}, "compare with this setting (default: sb3_ppo)"),
        ("--add", {**SEVERAL, "default": [], "metavar": "LABEL=PATH"}, "also include runs recorded elsewhere: a folder "
         "from the RL Zoo, or a csv file from CleanRL"),
        ("--names", {**SEVERAL, "default": [], "metavar": "SETTING=NAME"}, "what settings are called in the report"),
        ("--config", {"metavar": "FILE"}, "take names from this file of a comparison, too"),
        ("--paper", TRUE, "also write tables and figures for LaTeX, paper.tex, and the tests of all pairs, tests.csv"),
        ("--export", {"type": Path, "metavar": "FILE"}, "also pack the records into a .jsonl.gz file"),
    ],
}  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m sb3_ppo_variants", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    parsers = parser.add_subparsers(required=True, metavar="command")
    for run, says, groups, more in (
        (compare, "Compare algorithms over environments and seeds, resumably, and write a report.", COMPARE,
         "\n".join(["comparisons of the package:", *(f"  {name:14} {says}" for name, says in FIRST_LINES.items())])),
        (report, "Write a report of the runs recorded so far: report.md, report.html and scores.csv.", REPORT, None),
    ):  # fmt: skip
        # With abbreviations, --seed 7 would be --seeds 7.
        command = parsers.add_parser(
            run.__name__,
            help=says,
            description=says,
            epilog=more,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        for title, options in groups.items():
            group = command.add_argument_group(title)
            for name, takes, does in options:
                group.add_argument(name, **takes, help=does)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the command line names, or that of ``sys.argv``, and return its exit code.

    :raises SystemExit: if the command line asks for something that is not allowed, or a package is missing
    """
    options = make_parser().parse_args(arguments)
    with errors_in_a_line():
        code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
