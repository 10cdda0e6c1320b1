"""Pictures of a comparison, each as PNG, SVG and PDF."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, permutations, product
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.compare import statistics
from sb3_ppo_variants.compare.records import RANDOM, SPANS, curve
from sb3_ppo_variants.compare.scores import Comparison, order
from sb3_ppo_variants.compare.statistics import Estimate

# How the lines of a setting are drawn: Matplotlib's ``color``, ``linestyle`` and ``label``.
Look = Values
# Pictures are drawn to files, without a window. The same records always give the same files.
matplotlib.use("agg")
matplotlib.rcParams.update({"svg.hashsalt": "sb3_ppo_variants", "pdf.fonttype": 42, "legend.frameon": False})
matplotlib.rcParams.update({"axes.grid": True, "grid.color": "0.92", "axes.axisbelow": True})
matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
# Those of Okabe and Ito, which do not depend on how one sees colours. Each line style takes its turn with all of them.
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]
LINES = ["solid", (0, (4, 1.5)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (6, 1.5, 1, 1.5, 1, 1.5))]
# Bands of more settings would hide one another.
MOST_BANDS = len(COLORS)
# That of all pictures, in inches, so that text has the same size in all.
WIDTH = 8.0
# Vector formats that are written besides PNG, for use in papers.
VECTOR = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
# Of so many settings, the picture of all pairs has room for intervals.
MOST_INTERVALS = 8
# The logged values to draw, with their names in the picture.
QUANTITIES = {
    "kl": "KL(old || new)",
    "kl_coef": "β",
    "clip_fraction": "share clipped",
    "entropy_loss": "negative entropy",
    "explained_variance": "explained variance",
}


def looks(comparison: Comparison) -> dict[str, Look]:
    """Choose the colour and the line style of each setting of a comparison, and what it is called."""
    styles = zip(sorted(comparison.labels, key=order), cycle(product(LINES, COLORS)), strict=False)
    return {
        # Longer lines would leave no room for what is drawn.
        label: {"color": color, "linestyle": line, "label": fill(escape_label(comparison.show(label)), 40)}
        for label, (line, color) in styles
    }


def escape_label(label: str) -> str:
    """Escape a label, so that Matplotlib shows it unchanged."""
    # Text between dollars would be a formula, and a line whose label begins with an underscore has no legend.
    return f"{' ' * label.startswith('_')}{label}".replace("$", r"\$")


@contextmanager
def drawing(
    file: Path, rows: int = 1, columns: int = 1, size: tuple[float, float] = (WIDTH, 4.4), **sharing: Any
) -> Iterator[np.ndarray]:
    """Yield a grid of axes, and save their picture with a legend to files at the end of the context."""
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **sharing)
    yield grid
    lines = max(grid.ravel(), key=lambda axes: len(axes.lines)).get_legend_handles_labels()[0]
    if lines and grid.size <= 2:
        # From the curve that ends highest to the one that ends lowest.
        lines.sort(key=lambda line: -line.get_ydata()[-1])
        figure.legend(handles=lines, loc="outside right upper")
    elif lines:
        # Below the figure, so the picture grows with it, however many there are.
        figure.legend(handles=lines, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2)
    figure.savefig(file, dpi=130, bbox_inches="tight")
    for suffix, metadata in VECTOR.items():
        figure.savefig(file.with_suffix(suffix), bbox_inches="tight", metadata=metadata)
    pyplot.close(figure)


def draw_band(axes: Axes, x: np.ndarray, found: Estimate, seeds: np.ndarray, look: Look, banded: bool) -> None:
    """Draw a setting's mean, and if it is ``banded``, the interval, or if there is none, the range of the seeds."""
    axes.plot(x, found.value, **look)
    if banded:
        low, high = (found.low, found.high) if found.is_certain else (seeds.min(axis=0), seeds.max(axis=0))
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def draw_means(comparison: Comparison, file: Path) -> None:
    """Draw the mean score of each setting as a line, its interval as a bar, and the mean of each seed as a circle."""
    arrays, look = comparison.arrays, looks(comparison)
    with drawing(file, size=(WIDTH, 0.9 + 0.34 * len(arrays))) as [[axes]]:
        for height, (label, own) in enumerate(arrays.items()):
            color, mean, seeds = look[label]["color"], statistics.estimate(own), own.mean(axis=1)
            if mean.is_certain:
                axes.barh(height, mean.high - mean.low, left=mean.low, height=0.6, color=color, alpha=0.35)
            axes.plot([mean.value] * 2, [height - 0.3, height + 0.3], color=color, linewidth=2)
            axes.plot(seeds, [height] * len(seeds), "o", color=color, markersize=4, fillstyle="none")
        axes.set_yticks(range(len(arrays)), [look[label]["label"] for label in arrays])
        axes.set_xlabel("mean normalised score")
        # Otherwise, the bar that begins first would begin at the axis.
        axes.use_sticky_edges = False
        axes.autoscale_view()
        axes.invert_yaxis()


def mean_curve(comparison: Comparison, env: str, label: str) -> tuple[np.ndarray, Estimate, np.ndarray] | None:
    """Compute the steps, the mean curve and the seeds' curves in an environment, where every run has an episode.

    Runs that were recorded elsewhere may differ in length. Then the curve ends with the shortest.
    """
    runs = [record for record in comparison.runs(label, env) if record["last_returns"]]
    shortest = min((record["steps"] for record in runs), default=0)
    curves = np.array([curve(record, shortest) for record in runs], dtype=float).reshape(len(runs), SPANS)
    known = np.isfinite(curves).all(axis=0) & (len(runs) > 0)
    if not known.any():
        return None
    steps = np.arange(1, SPANS + 1) * shortest / SPANS
    # The runs are the seeds of a single environment.
    return steps[known], statistics.estimate(curves[:, None, known]), curves[:, known]


def draw_curves(comparison: Comparison, envs: Sequence[str], file: Path) -> None:
    """Draw the learning curves in some environments."""
    columns = min(math.ceil(math.sqrt(len(envs))), 4)
    rows = math.ceil(len(envs) / columns)
    with drawing(file, rows, columns, (WIDTH, 4.4 if rows == 1 else 2.2 * rows)) as grid:
        for axes in grid.flat[len(envs) :]:
            axes.set_axis_off()
        for axes, env in zip(grid.flat, envs, strict=False):
            for label, look in looks(comparison).items():
                if (found := mean_curve(comparison, env, label)) is not None:
                    draw_band(axes, *found, look, len(comparison.labels) <= MOST_BANDS)
            if env in (random := comparison.random_scores):
                axes.axhline(random[env], color="0.6", linewidth=1, label=RANDOM)
            axes.set_title(env)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        grid[-1, 0].set(xlabel="environment steps", ylabel="return of an episode")


def draw_probabilities(comparison: Comparison, file: Path) -> None:
    """Draw for each pair of settings the probability that a run of one, in a row, is better than one of the other."""
    arrays, look = comparison.arrays, looks(comparison)
    shares = np.full([len(arrays)] * 2, 0.5)
    with drawing(file, size=(WIDTH, 0.8 + 0.42 * len(arrays))) as [[axes]]:
        for (row, own), (column, other) in permutations(enumerate(arrays.values()), 2):
            found = statistics.probability_of_improvement(own, other)
            shares[row, column] = found.value
            # In smaller cells, there is no room for intervals.
            said = f"{found.value:.2f}" if len(arrays) > MOST_INTERVALS else str(found).replace(" (", "\n(")
            font = {"fontsize": min(8, 110 / len(arrays)), "color": "w" if abs(found.value - 0.5) > 0.35 else "k"}
            axes.text(column, row, said, ha="center", va="center", **font)
        axes.imshow(shares, vmin=0, vmax=1, cmap="RdBu", aspect="auto")
        axes.grid(False)
        names = [f"{look[label]['label']}  {number}" for number, label in enumerate(arrays, start=1)]
        axes.set_yticks(range(len(arrays)), names)
        axes.set_xticks(range(len(arrays)), range(1, len(arrays) + 1))
        axes.set_title("P(row is better than column)")


def draw_efficiency(comparison: Comparison, file: Path) -> None:
    """Draw the means of normalised curves over environments, against the share of the steps and against the time."""
    shares, curves = comparison.curves
    with drawing(file, columns=2, size=(WIDTH, 3.4), sharey=True) as [[by_steps, by_time]]:
        for label, of_setting in curves.items():
            mean, seeds = statistics.estimate(of_setting), of_setting.mean(axis=1)
            # NaN if the seconds of any run are not known.
            seconds = np.mean(np.array([run["wall_seconds"] for run in comparison.runs(label)], dtype=float))
            for axes, x in ((by_steps, 100 * shares), (by_time, shares * seconds / 60)):
                draw_band(axes, x, mean, seeds, looks(comparison)[label], len(curves) <= MOST_BANDS)
        by_steps.set(xlabel="% of the environment steps", ylabel="mean normalised score")
        # Lower means would hide how the others differ.
        by_steps.set_ylim(bottom=max(-0.5, by_steps.get_ylim()[0]))
        by_time.set_xlabel("minutes of a run, mean")


def list_quantities(comparison: Comparison) -> list[str]:
    """List which of ``QUANTITIES`` the updates logged."""
    logged = {name for record in comparison.records for name in record.get("training", {})}
    return [name for name in QUANTITIES if name in logged]


def draw_training(comparison: Comparison, file: Path) -> None:
    """Draw the values that updates logged, with a row for each environment."""
    names, envs = list_quantities(comparison), comparison.envs
    with drawing(file, len(envs), len(names), (WIDTH, 1.9 * len(envs) + 0.6), sharex="col") as grid:
        for (row, env), (column, name) in product(enumerate(envs), enumerate(names)):
            axes = grid[row, column]
            for label, look in looks(comparison).items():
                runs = [run for run in comparison.runs(label, env) if name in run.get("training", {})]
                if runs:
                    mean = pd.DataFrame([run["training"][name] for run in runs], dtype=float).ffill(axis=1).mean()
                    steps = np.arange(1, len(mean) + 1) / len(mean) * np.mean([run["steps"] for run in runs])
                    axes.plot(steps, mean, **look, linewidth=1.2)
            if name in ("kl", "kl_coef") and any(np.any(np.asarray(drawn.get_ydata()) > 0) for drawn in axes.lines):
                axes.set_yscale("log")
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.locator_params(axis="x", nbins=3)
            axes.set_title(QUANTITIES[name] * (row == 0), fontsize="medium")
            axes.set_ylabel(env.rpartition(":")[2] * (column == 0))
        axes.figure.supxlabel("environment steps", fontsize="medium")
