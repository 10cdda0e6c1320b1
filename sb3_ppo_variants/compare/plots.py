"""Pictures of a comparison, each as PNG, SVG and PDF."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, product
from pathlib import Path
from textwrap import fill

import matplotlib
import numpy as np
import pandas as pd
import seaborn
from matplotlib import pyplot
from matplotlib.axes import Axes

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.compare import statistics
from sb3_ppo_variants.compare.records import RANDOM, SPANS, curve
from sb3_ppo_variants.compare.scores import Comparison, order
from sb3_ppo_variants.compare.statistics import Estimate

# How the lines of a setting are drawn: Matplotlib's ``color``, ``linestyle`` and ``label``.
Look = Values
# Pictures are drawn to files, without a window. The same records always give the same files.
matplotlib.use("agg")
matplotlib.rcParams.update({"svg.hashsalt": "sb3_ppo_variants", "pdf.fonttype": 42})
# Twelve colours and five line styles have no common divisor, so that sixty settings look different.
COLORS = [*seaborn.color_palette("tab10"), (0.0, 0.0, 0.5), (1.0, 0.8, 0.0)]
LINES = ["solid", "dashed", "dotted", "dashdot", (0, (6, 1, 1, 1, 1, 1))]
# That of all pictures, in inches, so that text has the same size in all.
WIDTH = 8.0
# Vector formats that are written besides PNG, for use in papers.
VECTOR = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
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
    styles = dict(
        zip(sorted(comparison.labels, key=order), zip(cycle(COLORS), cycle(LINES), strict=False), strict=False)
    )
    return {
        label: {"color": color, "linestyle": line, "label": escape_label(comparison.show(label))}
        for label in comparison.labels
        for color, line in [styles[label]]
    }


def escape_label(label: str) -> str:
    """Escape a label, so that Matplotlib shows it unchanged."""
    # Text between dollars would be a formula, and a line whose label begins with an underscore has no legend.
    return f"{' ' * label.startswith('_')}{label}".replace("$", r"\$")


@contextmanager
def drawing(
    file: Path, rows: int = 1, columns: int = 1, size: tuple[float, float] = (WIDTH, 4.4), sharey: bool = False
) -> Iterator[np.ndarray]:
    """Yield a grid of axes, and save their picture with a legend to files at the end of the context."""
    figure, grid = pyplot.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False, sharex="col", sharey=sharey
    )
    yield grid
    handles, labels = max(grid.ravel(), key=lambda axes: len(axes.lines)).get_legend_handles_labels()
    if handles:
        # The legend is below the figure, so the picture grows with it, however many and long the names are.
        columns = max(1, int(100 / (max(map(len, labels)) + 8)))
        figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0), frameon=False, ncols=columns)
    for axes in grid.ravel():
        axes.grid(alpha=0.3)
    seaborn.despine(figure)
    figure.savefig(file, dpi=130, bbox_inches="tight")
    for suffix, metadata in VECTOR.items():
        figure.savefig(file.with_suffix(suffix), bbox_inches="tight", metadata=metadata)
    pyplot.close(figure)


def draw_band(axes: Axes, x: np.ndarray, found: Estimate, seeds: np.ndarray, look: Look) -> None:
    """Draw the curve of a setting with its interval, or if there is none, with a thin line for each seed."""
    axes.plot(x, found.value, **look)
    if found.is_certain:
        axes.fill_between(x, found.low, found.high, color=look["color"], alpha=0.15, linewidth=0)
    elif len(seeds) > 1:
        axes.plot(x, seeds.T, **{**look, "label": None}, linewidth=0.5, alpha=0.6)


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
        # Longer lines would leave no room for the bars.
        axes.set_yticks(range(len(arrays)), [fill(look[label]["label"], 50) for label in arrays])
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


def draw_curves(comparison: Comparison, env: str, file: Path) -> None:
    """Draw the learning curves in an environment."""
    with drawing(file) as [[axes]]:
        for label, look in looks(comparison).items():
            if (found := mean_curve(comparison, env, label)) is not None:
                steps, mean, seeds = found
                draw_band(axes, steps, mean, seeds, look)
        if env in (random := comparison.random_scores):
            axes.axhline(random[env], color="0.6", linewidth=1, label=RANDOM)
        axes.set(xlabel="environment steps", ylabel="return of an episode", title=env)


def draw_efficiency(comparison: Comparison, file: Path) -> None:
    """Draw the means of normalised curves over environments, against the share of the steps and against the time."""
    shares, curves = comparison.curves
    look = looks(comparison)
    with drawing(file, columns=2, size=(WIDTH, 3.4), sharey=True) as [[by_steps, by_time]]:
        for label, of_setting in curves.items():
            mean, seeds = statistics.estimate(of_setting), of_setting.mean(axis=1)
            # NaN if the seconds of any run are not known.
            seconds = np.mean(np.array([run["wall_seconds"] for run in comparison.runs(label)], dtype=float))
            draw_band(by_steps, 100 * shares, mean, seeds, look[label])
            draw_band(by_time, shares * seconds / 60, mean, seeds, look[label])
        by_steps.set(xlabel="% of the environment steps", ylabel="mean normalised score")
        by_time.set_xlabel("minutes of a run, mean")


def list_quantities(comparison: Comparison) -> list[str]:
    """List which of ``QUANTITIES`` the updates logged."""
    logged = {name for record in comparison.records for name in record.get("training", {})}
    return [name for name in QUANTITIES if name in logged]


def draw_training(comparison: Comparison, file: Path) -> None:
    """Draw the values that updates logged, with a row for each quantity and a column for each environment."""
    names, envs = list_quantities(comparison), comparison.envs
    with drawing(file, len(names), len(envs), (2.9 * len(envs) + 0.6, 2.0 * len(names) + 0.4)) as grid:
        for (row, name), (column, env) in product(enumerate(names), enumerate(envs)):
            axes = grid[row, column]
            for label, look in looks(comparison).items():
                # At this size, intervals would hide one another.
                runs = [run for run in comparison.runs(label, env) if name in run.get("training", {})]
                if runs:
                    mean = pd.DataFrame([run["training"][name] for run in runs], dtype=float).ffill(axis=1).mean()
                    steps = np.arange(1, len(mean) + 1) / len(mean) * np.mean([run["steps"] for run in runs])
                    axes.plot(steps, mean, **look, linewidth=1.2)
            if name in ("kl", "kl_coef") and any(np.any(np.asarray(drawn.get_ydata()) > 0) for drawn in axes.lines):
                axes.set_yscale("log")
        for column, env in enumerate(envs):
            grid[0, column].set_title(env, fontsize="medium")
            grid[-1, column].set_xlabel("environment steps", fontsize="small")
        for row, name in enumerate(names):
            grid[row, 0].set_ylabel(QUANTITIES[name], fontsize="small")
