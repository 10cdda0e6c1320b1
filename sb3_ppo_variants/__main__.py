"""Compare PPO variants with each other and with other algorithms, and report the results."""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from sb3_ppo_variants.commandline import errors_in_a_line, whole_number
from sb3_ppo_variants.compare import ALGORITHM_PATHS, DEFAULT_ALGORITHMS, EXAMPLE, PROTOCOL_NAMES

# What argparse's add_argument takes.
Takes = dict[str, Any]
# An option with several values, which may also be given several times.
SEVERAL: Takes = {"action": "extend", "nargs": "+"}
SWITCH: Takes = {"action": argparse.BooleanOptionalAction}
A_NUMBER: Takes = {"type": whole_number}
A_FOLDER: Takes = {"type": Path, "metavar": "DIR"}
NOTHING: Takes = {"action": "store_true"}
OUT = ("--out", {**A_FOLDER, "default": Path("runs/compare")}, "folder for records and report (default: %(default)s)")
# The options of each command by group: their name, what it takes, and what they do.
OPTIONS: dict[str, dict[str, list[tuple[str, Takes, str]]]] = {
    "compare": {
        "what to compare": [
            ("--config", {"metavar": "NAME"}, "a comparison in a YAML file, of your own or of the package "
             "(paper-table1, paper-figure3, objectives or atari-demo); other options change it"),
            ("--algos", {**SEVERAL, "metavar": "ALGO"}, f"{', '.join(ALGORITHM_PATHS)} or module:Class, optionally "
             f"with arguments: {EXAMPLE} (default: {' '.join(DEFAULT_ALGORITHMS)})"),
            ("--envs", {**SEVERAL, "metavar": "ID"}, "environment ids (default: CartPole-v1)"),
            ("--seeds", {**A_NUMBER, "metavar": "N"}, "number of seeds: 0 to N-1 (default: 3)"),
        ],
        "conditions": [
            ("--timesteps", A_NUMBER, "environment steps of a run (default: from the hyperparameters)"),
            ("--protocol", {"choices": PROTOCOL_NAMES}, "protocol of the paper's experiments; implies --entry mujoco, "
             "unless there are --hyperparams"),
            ("--hyperparams", {"metavar": "FILE"}, "YAML file in the RL Zoo's format"),
            ("--entry", {}, "hyperparameters for all environments, such as mujoco (default: each its own)"),
            ("-p", {"action": "append", "default": [], "dest": "param", "metavar": "NAME=VALUE"}, "change a "
             "hyperparameter"),
            ("--normalize", SWITCH, "normalise with VecNormalize"),
            ("--anneal", SWITCH, "anneal the step size to 0"),
            ("--resume-every", {**A_NUMBER, "metavar": "STEPS"}, "checkpoint each run every STEPS steps, so that the "
             "same command resumes interrupted runs"),
        ],
        "where to run": [
            OUT,
            ("--jobs", A_NUMBER, "number of parallel runs (default: one per core)"),
            ("--backend", {"choices": ("loky", "ray", "dask"), "default": "loky"}, "joblib backend (default: local "
             "processes)"),
            ("--address", {}, "address of the Ray or Dask cluster (default: start one here)"),
            ("--fast-envs", NOTHING, "use the fastest environments with the same results, bit for bit"),
            ("--checkpoints", NOTHING, "save each trained model in the --out folder"),
            ("--tensorboard", A_FOLDER, "folder for TensorBoard logs"),
            ("--dry-run", NOTHING, "show the plan and stop"),
        ],
    },
    "report": {
        "what to report": [
            OUT,
            ("--from", {**SEVERAL, "type": Path, "dest": "files", "metavar": "FILE"}, "report these exported records "
             "instead of those in --out"),
            ("--baseline", {"metavar": "SETTING"}, "compare with this setting (default: sb3_ppo)"),
            ("--add", {**SEVERAL, "default": [], "metavar": "LABEL=PATH"}, "also include runs recorded elsewhere: a "
             "folder from the RL Zoo, or a csv file from CleanRL"),
            ("--export", {"type": Path, "metavar": "FILE"}, "also pack the records into a .jsonl.gz file"),
        ],
    },
}  # fmt: skip
# The module of each command, and what it does.
COMMANDS = {
    "compare": ("command", "Compare algorithms over environments and seeds, resumably, and write a report."),
    "report": ("report", "Write a report of the runs recorded so far: report.md, report.html and scores.csv."),
}  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    """Make the parser, whose help needs none of the packages that the commands need."""
    parser = argparse.ArgumentParser(prog="python -m sb3_ppo_variants", description=__doc__)
    parsers = parser.add_subparsers(required=True, metavar="command", dest="command")
    for command, (_, says) in COMMANDS.items():
        # With abbreviations, --seed 7 would be --seeds 7.
        own = parsers.add_parser(command, help=says, description=says, allow_abbrev=False)
        for title, options in OPTIONS[command].items():
            group = own.add_argument_group(title)
            for name, takes, does in options:
                group.add_argument(name, **takes, help=does)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the command line names.

    :param arguments: command-line arguments; ``None`` takes ``sys.argv``
    :return: the exit code
    :raises SystemExit: if the command line asks for something that is not allowed, or a package is missing
    """
    options = make_parser().parse_args(arguments)
    with errors_in_a_line():
        module, _ = COMMANDS[options.command]
        code: int = import_module(f"sb3_ppo_variants.compare.{module}").run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
