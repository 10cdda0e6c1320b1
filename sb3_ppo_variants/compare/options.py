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
# An option with several values, which may also be given several times.
SEVERAL: dict[str, Any] = {"action": "extend", "nargs": "+"}


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    names = f"{', '.join(ALGORITHM_PATHS)} or module:Class, optionally with arguments: {EXAMPLE}"
    what = parser.add_argument_group("what to compare")
    what.add_argument("--algos", **SEVERAL, metavar="ALGO", help=f"{names} (default: {' '.join(DEFAULT_ALGORITHMS)})")
    what.add_argument("--envs", **SEVERAL, metavar="ID", help="environment ids (default: CartPole-v1)")
    what.add_argument("--seeds", type=whole_number, metavar="N", help="number of seeds: 0 to N-1 (default: 3)")
    what.add_argument(
        "--config", metavar="NAME",
        help="a comparison of the package (paper-table1, paper-figure3, objectives or atari-demo) or of your own, in a "
        "YAML file; other options change it",
    )  # fmt: skip
    how = parser.add_argument_group("conditions")
    how.add_argument(
        "--protocol",
        choices=PROTOCOL_NAMES,
        help="protocol of the paper's experiments; implies --entry mujoco, unless there are --hyperparams",
    )
    how.add_argument(
        "--timesteps", type=whole_number, help="environment steps of a run (default: from the hyperparameters)"
    )
    how.add_argument("--hyperparams", type=Path, metavar="FILE", help="yml or py file in the RL Zoo's format")
    how.add_argument("--entry", help="hyperparameters for all environments, such as mujoco (default: each its own)")
    how.add_argument("-p", "--param", action="append", default=[], metavar="NAME=VALUE", help="change a hyperparameter")
    how.add_argument("--normalize", action=argparse.BooleanOptionalAction, help="normalise with VecNormalize")
    how.add_argument("--anneal", action=argparse.BooleanOptionalAction, help="anneal the step size to 0")
    how.add_argument(
        "--resume-every", type=whole_number, metavar="STEPS",
        help="checkpoint each run every STEPS steps, so that the same command resumes interrupted runs",
    )  # fmt: skip
    where = parser.add_argument_group("where to run")
    where.add_argument("--out", type=Path, default=OUT, help="folder for records and report (default: %(default)s)")
    where.add_argument(
        "--from", dest="files", type=Path, **SEVERAL, default=[], metavar="FILE",
        help="copy the finished runs that report --export packed into FILE to --out, and continue from there",
    )  # fmt: skip
    where.add_argument(
        "--fast-envs", action="store_true", help="use the fastest environments with the same results, bit for bit"
    )
    where.add_argument("--jobs", type=whole_number, help="number of parallel runs (default: one per core)")
    where.add_argument(
        "--backend", choices=("loky", "ray", "dask"), default="loky", help="joblib backend (default: local processes)"
    )
    where.add_argument("--address", help="address of the Ray or Dask cluster (default: start one here)")
    where.add_argument("--checkpoints", action="store_true", help="save each trained model in the --out folder")
    also = parser.add_argument_group("additional logs")
    also.add_argument("--tensorboard", type=Path, metavar="DIR", help="folder for TensorBoard logs")
    also.add_argument("--wandb", metavar="PROJECT", help="Weights & Biases project")
    where.add_argument("--dry-run", action="store_true", help="show the plan and stop")


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    parser.add_argument("--out", type=Path, help=f"folder for records and report (default: {OUT})")
    parser.add_argument("--from", dest="files", type=Path, **SEVERAL, help="report these exported records, into --out")
    parser.add_argument("--baseline", metavar="SETTING", help="compare with this setting (default: sb3_ppo)")
    parser.add_argument(
        "--add", **SEVERAL, default=[], metavar="LABEL=PATH",
        help="also include runs recorded elsewhere: a folder from the RL Zoo, or a csv file from CleanRL",
    )  # fmt: skip
    parser.add_argument("--export", type=Path, metavar="FILE", help="also pack the records into a .jsonl.gz file")


COMMANDS = {
    "compare": Command(
        "Compare algorithms over environments and seeds (settings x environments x seeds), resumably, and write a "
        "report.",
        add_compare,
        f"{__package__}.command",
    ),
    "report": Command(
        "Write a report of the runs recorded so far: report.md, report.html, interactive.html and scores.csv.",
        add_report,
        f"{__package__}.report",
    ),
}
