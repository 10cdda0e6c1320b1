"""Compare what several processes learn together with what one process learns with all their environments."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Count, circumstances, make_folders, reported
from benchmarks.scaling import launch
from sb3_ppo_variants.compare.plots import draw_band, drawing, looks
from sb3_ppo_variants.compare.statistics import band as over_seeds
from sb3_ppo_variants.errors import ArgumentError

# Environments, steps of each, and minibatch size over all processes: the same, however many processes share them.
N_ENVS, N_STEPS, BATCH_SIZE = 2, 1024, 128
POINTS = 100
Curves = dict[str, list[list[tuple[int, float]]]]


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--env", default="HalfCheetah-v5", help="environment (default: %(default)s)")
    parser.add_argument("--timesteps", action=Count, default=1_000_000, help="steps of a run (default: %(default)s)")
    parser.add_argument("--seeds", action=Count, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the learning curves")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without training")
    parser.add_argument("--picture", type=Path, help="PNG file for the learning curves, next to which SVG and PDF go")


def run(options: argparse.Namespace) -> int:
    """Train, print the table and draw the curves."""
    make_folders(options.json, options.picture)
    if options.report is None:
        curves = _train(options.env, options.timesteps, options.seeds)
        learned = {**circumstances(), "env": options.env, "curves": curves}
    else:
        learned = reported(options.report, "env", "curves")
    print("\n".join(table(learned["curves"])))
    if options.json is not None:
        options.json.write_text(json.dumps(learned) + "\n")
    if options.picture is not None:
        draw(learned, options.picture)
    return 0


def _train(env_id: str, timesteps: int, seeds: int) -> Curves:
    """Train with each seed, in one process and in two.

    :raises ArgumentError: if a run ends before its first episode
    """
    curves: Curves = {"1 process": [], "2 processes": []}
    for seed in range(seeds):
        for processes, of_label in zip((1, 2), curves.values(), strict=True):
            shape = N_ENVS // processes, N_STEPS, BATCH_SIZE // processes
            points = launch(processes, "learn", env_id, *shape, timesteps, seed)
            if not points:
                raise ArgumentError(f"--timesteps {timesteps} ends before the first episode of {env_id}; pass more")
            of_label.append(points)
    return curves


def table(curves: Curves) -> list[str]:
    """Return a table of the mean return of each run's last 100 episodes."""
    lines = ["| | mean | per seed |", "|---|---|---|"]
    for label, of_label in curves.items():
        last = [points[-1][1] for points in of_label]
        lines.append(f"| {label} | {np.mean(last):.0f} | {', '.join(f'{value:.0f}' for value in last)} |")
    return lines


def draw(learned: dict[str, Any], file: Path) -> None:
    """Draw the curves: means over seeds with 95% intervals, or with few seeds, a line for each."""
    curves: Curves = learned["curves"]
    ends = [(points[0][0], points[-1][0]) for of_label in curves.values() for points in of_label]
    steps = np.linspace(max(first for first, _ in ends), min(last for _, last in ends), POINTS)
    means = {
        label: np.array([np.interp(steps, *np.array(points).T) for points in of_label])
        for label, of_label in curves.items()
    }
    look = looks(list(curves))
    with drawing(file) as [[axes]]:
        for label in curves:
            draw_band(axes, steps, label, over_seeds(means[label][:, None]), look[label], means[label])
        axes.set_xlabel("environment steps of all processes")
        axes.set_ylabel("mean return of 100 episodes")
        axes.set_title(learned["env"])
