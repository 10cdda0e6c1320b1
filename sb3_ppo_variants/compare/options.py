"""The command lines of ``compare`` and ``report``. Their help needs none of the packages that they need."""

import argparse
from pathlib import Path
from typing import Any

from sb3_ppo_variants.commandline import Command, whole_number

# The import path of each algorithm. The others are compared with SB3's PPO.
BASELINE = "sb3_ppo"
MASKABLE_PPO = "sb3_contrib:MaskablePPO"
ALGORITHM_PATHS = {
    "ppo_clip": "sb3_ppo_variants:PPOClip",
    "ppo_adaptive_kl": "sb3_ppo_variants:PPOAdaptiveKL",
    "ppo_fixed_kl": "sb3_ppo_variants:PPOFixedKL",
    "ppo_unclipped": "sb3_ppo_variants:PPOUnclipped",
    "ppo_custom": "sb3_ppo_variants:PPOCustom",
    BASELINE: "stable_baselines3:PPO",
    "sb3_a2c": "stable_baselines3:A2C",
    "trpo": "sb3_contrib:TRPO",
    "contrib_maskable_ppo": MASKABLE_PPO,
    "contrib_recurrent_ppo": "sb3_contrib:RecurrentPPO",
}
EXAMPLE = "ppo_clip:clip_range=0.1"
# What is compared by default.
DEFAULT_ALGORITHMS = ["ppo_clip", "ppo_adaptive_kl", "ppo_fixed_kl", "ppo_unclipped", BASELINE]
PROTOCOL_NAMES = ("text", "released-code", "sb3")
OUT = Path("runs/compare")

ALGORITHM_NAMES = ", ".join(ALGORITHM_PATHS)
# An option with several values, which may also be given several times.
SEVERAL: dict[str, Any] = {"action": "extend", "nargs": "+"}
SWITCH: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
A_NUMBER: dict[str, Any] = {"type": whole_number}
A_FOLDER: dict[str, Any] = {"type": Path, "metavar": "DIR"}
NOTHING: dict[str, Any] = {"action": "store_true"}
# The options of compare by group: their name, what it takes, and what they do.
OPTIONS: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "what to compare": [
        ("--config", {"metavar": "NAME"}, "a comparison in a YAML file, of your own or of the package (paper-table1, "
         "paper-figure3, objectives or atari-demo); other options change it"),
        ("--algos", {**SEVERAL, "metavar": "ALGO"}, f"{ALGORITHM_NAMES} or module:Class, optionally with arguments: "
         f"{EXAMPLE} (default: {' '.join(DEFAULT_ALGORITHMS)})"),
        ("--envs", {**SEVERAL, "metavar": "ID"}, "environment ids (default: CartPole-v1)"),
        ("--seeds", {**A_NUMBER, "metavar": "N"}, "number of seeds: 0 to N-1 (default: 3)"),
    ],
    "conditions": [
        ("--timesteps", A_NUMBER, "environment steps of a run (default: from the hyperparameters)"),
        ("--protocol", {"choices": PROTOCOL_NAMES}, "protocol of the paper's experiments; implies --entry mujoco, "
         "unless there are --hyperparams"),
        ("--hyperparams", {"type": Path, "metavar": "FILE"}, "YAML file in the RL Zoo's format"),
        ("--entry", {}, "hyperparameters for all environments, such as mujoco (default: each its own)"),
        ("-p", {"action": "append", "default": [], "dest": "param", "metavar": "NAME=VALUE"}, "change a "
         "hyperparameter"),
        ("--normalize", SWITCH, "normalise with VecNormalize"),
        ("--anneal", SWITCH, "anneal the step size to 0"),
        ("--resume-every", {**A_NUMBER, "metavar": "STEPS"}, "checkpoint each run every STEPS steps, so that the same "
         "command resumes interrupted runs"),
    ],
    "where to run": [
        ("--out", {**A_FOLDER, "default": OUT}, "folder for records and report (default: %(default)s)"),
        ("--from", {**SEVERAL, "type": Path, "dest": "files", "default": [], "metavar": "FILE"}, "copy the finished "
         "runs that report --export packed into FILE to --out, and continue from there"),
        ("--jobs", A_NUMBER, "number of parallel runs (default: one per core)"),
        ("--backend", {"choices": ("loky", "ray", "dask"), "default": "loky"}, "joblib backend (default: local "
         "processes)"),
        ("--address", {}, "address of the Ray or Dask cluster (default: start one here)"),
        ("--fast-envs", NOTHING, "use the fastest environments with the same results, bit for bit"),
        ("--checkpoints", NOTHING, "save each trained model in the --out folder"),
        ("--tensorboard", A_FOLDER, "folder for TensorBoard logs"),
        ("--dry-run", NOTHING, "show the plan and stop"),
    ],
}  # fmt: skip
REPORT_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("--out", A_FOLDER, f"folder for records and report (default: {OUT})"),
    ("--from", {**SEVERAL, "type": Path, "dest": "files", "metavar": "FILE"}, "report these exported records, into "
     "--out"),
    ("--baseline", {"metavar": "SETTING"}, "compare with this setting (default: sb3_ppo)"),
    ("--add", {**SEVERAL, "default": [], "metavar": "LABEL=PATH"}, "also include runs recorded elsewhere: a folder "
     "from the RL Zoo, or a csv file from CleanRL"),
    ("--export", {"type": Path, "metavar": "FILE"}, "also pack the records into a .jsonl.gz file"),
]  # fmt: skip


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, takes, does in options:
            group.add_argument(name, **takes, help=does)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    for name, takes, does in REPORT_OPTIONS:
        parser.add_argument(name, **takes, help=does)


COMMANDS = {
    "compare": Command(
        "Compare algorithms over environments and seeds (settings x environments x seeds), resumably, and write a "
        "report.",
        add_compare,
        f"{__package__}.command",
    ),
    "report": Command(
        "Write a report of the runs recorded so far: report.md, report.html, scores.csv and scores.tex.",
        add_report,
        f"{__package__}.report",
    ),
}
