"""Make the reports of the committed records again, which the documentation shows."""

import argparse
from pathlib import Path

from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.report import write_report

RESULTS = Path("results")
DOCS = Path("docs")
# For each file of records, the baseline of its report, or None for SB3's PPO.
BASELINES = {
    "table1-text": "ppo_clip clip_range=0.2",
    "table1-code": "ppo_clip clip_range=0.2",
    "paper-figure3": "ppo_clip learning_rate=lin_0.0003",
    "sb3-1m": None,
    "same-learning": None,
    "separate-200k": "ppo_clip",
    "spinning-up": "ppo_clip",
    "hopper": None,
    "masked": "contrib_maskable_ppo",
    "recurrent": "contrib_recurrent_ppo",
    "details": "ppo_clip",
    "objectives-500k": "ppo_clip",
    "penalties-ant": "ppo_clip",
    "penalties-humanoid": "ppo_clip",
}
# What a report has besides, and the documentation does not show.
LEFT_OUT = ("report.html", "scores.tex")


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--only", nargs="+", choices=BASELINES, metavar="NAME", help="make only some of %(choices)s")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder for the folders (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Write each report into the folder of its name."""
    for name in options.only or BASELINES:
        found, problems = records.load_records(None, [RESULTS / f"{name}.jsonl.gz"])
        write_report(options.out / name, found, problems, baseline=BASELINES[name])
        for file in LEFT_OUT:
            (options.out / name / file).unlink()
    return 0
