"""Draw the figures of the pages about the objectives, with the objectives' own code and from committed records."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.figures import bandit_pictures, field, measured_pictures, ratio, tasks
from benchmarks.figures.look import ADAPTIVE, CLIP, FIXED, PLAIN, shades

OUT = Path("docs/objectives/pictures")
NONE = "ppo_unclipped"
CLIPPED = [f"ppo_clip clip_range={e}" for e in ("0.1", "0.2", "0.3")]
ADAPTED = [f"ppo_adaptive_kl desired_kl={d}" for d in ("0.003", "0.01", "0.03")]
PENALISED = [f"ppo_fixed_kl kl_coef={b}" for b in ("0.3", "1", "3", "10")]
FIGURES: dict[str, Callable[[Path], None]] = {
    "overview": ratio.overview,
    "ratio-clip": ratio.clip,
    "ratio-penalty": ratio.penalty,
    "ratio-penalty-and-clip": ratio.penalty_and_clip,
    "ratio-unclipped": ratio.unclipped,
    "ratio-spo": field.quadratic,
    "ratio-clips": field.clips,
    "ratio-cispo": field.weights,
    "ratio-rollback": field.rollback,
    "ratio-gates": field.gates,
    "ratio-dpo": field.drift,
    "ratio-kl-hinge": field.hinge,
    "ratio-reverse-kl": field.reverse,
    "ranges-trgppo": field.ranges,
    "gradients": field.gradients,
    "bandit-clip": bandit_pictures.clip,
    "bandit-penalty": bandit_pictures.penalty,
    "bandit-unclipped": bandit_pictures.unclipped,
    "bandit-adaptive": bandit_pictures.adaptive,
    "interpolation": measured_pictures.interpolated,
    "interpolation-penalty": measured_pictures.interpolated_penalty,
    "speed": measured_pictures.faster,
    "compared": measured_pictures.compared,
    "figure3": tasks.algorithms,
    "table1-study": tasks.conditions,
    "curves-all": partial(
        measured_pictures.learned,
        labels=[CLIPPED[1], ADAPTED[1], PENALISED[1], NONE],
        colors=[CLIP, ADAPTIVE, FIXED, PLAIN],
    ),
    "curves-clip": partial(measured_pictures.learned, labels=[*CLIPPED, NONE], colors=[*shades("crest", 3), PLAIN]),
    "curves-adaptive": partial(measured_pictures.learned, labels=[*ADAPTED, NONE], colors=[*shades("crest", 3), PLAIN]),
    "curves-fixed": partial(measured_pictures.learned, labels=[*PENALISED, NONE], colors=[*shades("flare", 4), PLAIN]),
}


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the pictures (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=FIGURES, metavar="NAME", help="draw only some of %(choices)s")


def run(options: argparse.Namespace) -> int:
    """Draw each figure into an SVG file."""
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only or FIGURES:
        FIGURES[name](options.out / f"{name}.svg")
    print(f"Drawn: {options.out}")
    return 0
