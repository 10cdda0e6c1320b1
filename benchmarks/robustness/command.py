"""How robust each objective is to its hyperparameters: tables, and pictures, of the runs of robustness.yml."""

import argparse
from pathlib import Path

from benchmarks.robustness.at_random import at_random, by_size, correlate, draw_at_random, in_each_environment
from benchmarks.robustness.chosen import confirmed
from benchmarks.robustness.scores import ENDS, count_failures, list_ends, say_cost, scaled
from sb3_ppo_variants.compare import records
from sb3_ppo_variants.errors import ArgumentError

RESULTS = Path("results/robustness.jsonl.gz")
EXPLAINED = f"""In each environment, the {ENDS[0]}th percentile of the random configurations has the score 0 and the
{ENDS[1]}th has 1. The sensitivity is that of Adkins et al. 2024
(https://arxiv.org/abs/2412.07165): how much better an objective scores if its best configuration is chosen for each
environment than if one is chosen for all of them. The best of few runs is partly luck, which raises it."""


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--from", dest="files", type=Path, nargs="+", default=[RESULTS], help=f"exported records (default: {RESULTS})"
    )
    parser.add_argument("--pictures", type=Path, help="folder for the pictures, in PNG, SVG and PDF files")


def run(options: argparse.Namespace) -> int:
    """Print the tables, and draw the pictures."""
    found = records.read(*options.files)
    frame = scaled(found)
    if not frame["is_random"].any():
        raise ArgumentError("these records have no finished runs of robustness-random.yml, of which tables are made")
    blocks = [EXPLAINED, list_ends(frame), say_cost(found), count_failures(frame)]
    blocks += [*at_random(frame), *in_each_environment(frame), *by_size(frame), *correlate(frame), *confirmed(frame)]
    print("\n\n".join(blocks))
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
        draw_at_random(frame, options.pictures / "at-random.png")
    return 0
