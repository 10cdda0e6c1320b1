"""Pictures of a comparison, each as PNG, SVG and PDF.

``labels`` are all settings of the comparison, each with its own style.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np
import pandas as pd
import seaborn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sb3_ppo_variants.compare import statistics
from sb3_ppo_variants.compare.records import SPANS, curve
from sb3_ppo_variants.compare.scores import Comparison
from sb3_ppo_variants.compare.statistics import Estimate

Color = tuple[float, float, float]
LineStyle = Literal["solid", "dashed", "dotted", "dashdot"] | tuple[float, tuple[float, ...]]
Look = tuple[Color, LineStyle]
# Pictures are drawn to files, without a window. The same records always give the same files.
matplotlib.use("agg")
matplotlib.rcParams.update({"svg.hashsalt": "sb3_ppo_variants", "pdf.fonttype": 42})
# Twelve colours and five line styles have no common divisor, so that sixty settings look different.
COLORS = [*seaborn.color_palette("tab10"), (0.0, 0.0, 0.5), (1.0, 0.8, 0.0)]
LINES: list[LineStyle] = ["solid", "dashed", "dotted", "dashdot", (0, (6, 1, 1, 1, 1, 1))]
SMALL_TEXT, MEDIUM_TEXT = 9, 11
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


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """Choose the colour and the line style of each setting."""
    return dict(zip(labels, zip(cycle(COLORS), cycle(LINES), strict=True), strict=False))


def escape_label(label: str) -> str:
    """Escape a label, so that Matplotlib shows it unchanged."""
    # Text between dollars would be a formula, and a line whose label begins with an underscore has no legend.
    text = label.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def save_figure(figure: Figure, file: Path) -> None:
    """Write a figure to a PNG file, and to an SVG and a PDF file next to it."""
    # A tight bounding box leaves room for all names.
    figure.savefig(file, dpi=130, bbox_inches="tight")
    for suffix, metadata in VECTOR.items():
        figure.savefig(file.with_suffix(suffix), bbox_inches="tight", metadata=metadata)
    pyplot.close(figure)


@contextmanager
def drawing(
    file: Path,
    rows: int = 1,
    columns: int = 1,
    size: tuple[float, float] = (6.5, 4.5),
    sharey: bool = False,
) -> Iterator[np.ndarray]:
    """Yield a grid of axes, and save their picture with a legend to a file at the end of the context."""
    figure, grid = pyplot.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False, sharex="col", sharey=sharey
    )
    yield grid
    handles, labels = max(grid.ravel(), key=lambda axes: len(axes.lines)).get_legend_handles_labels()
    if handles:
        # The legend is outside the figure, so the picture grows with it, however long the names are.
        figure.legend(handles, labels, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=SMALL_TEXT)
    save_figure(figure, file)


def label_grid(grid: np.ndarray, titles: Sequence[str], x: str) -> None:
    """Give the columns of a grid titles, and all of them the same label below."""
    for column, title in zip(grid.T, titles, strict=True):
        column[0].set_title(title, fontsize=MEDIUM_TEXT)
        column[-1].set_xlabel(x, fontsize=SMALL_TEXT)


def draw_band(
    axes: Axes, x: np.ndarray, label: str, found: Estimate, look: Mapping[str, Look], seeds: np.ndarray | tuple[()] = ()
) -> None:
    """Draw the curve of a setting with its interval, or if there is none, with a thin line for each seed."""
    color, line = look[label]
    axes.plot(x, found.value, color=color, linestyle=line, label=escape_label(label))
    if found.is_certain:
        axes.fill_between(x, found.low, found.high, color=color, alpha=0.15, linewidth=0)
    elif len(seeds) > 1:
        axes.plot(x, np.transpose(seeds), color=color, linestyle=line, linewidth=0.5, alpha=0.6)
    axes.grid(alpha=0.3)
    seaborn.despine(ax=axes)


def draw_aggregates(scores: statistics.Scores, labels: Sequence[str], file: Path) -> None:
    """Draw the mean score of each setting as a line, its interval as a bar, and the mean of each seed as a circle."""
    estimates, look = statistics.means(scores), looks(labels)
    figure, axes = pyplot.subplots(figsize=(6.5, 0.9 + 0.34 * len(estimates)))
    for height, (label, estimate) in enumerate(estimates.items()):
        color, _ = look[label]
        if estimate.is_certain:
            axes.barh(height, estimate.high - estimate.low, left=estimate.low, height=0.6, color=color, alpha=0.35)
        axes.plot([estimate.value] * 2, [height - 0.3, height + 0.3], color=color, linewidth=2)
        seeds = scores[label].mean(axis=1)
        axes.plot(seeds, [height] * len(seeds), "o", color=color, markersize=4, fillstyle="none")
    axes.set_yticks(range(len(estimates)), list(map(escape_label, estimates)), fontsize=SMALL_TEXT)
    axes.set_xlabel("mean normalised score", fontsize=MEDIUM_TEXT)
    # Otherwise, the bar that begins first would begin at the axis.
    axes.use_sticky_edges = False
    axes.autoscale_view()
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    seaborn.despine(ax=axes)
    save_figure(figure, file)


def draw_profiles(scores: statistics.Scores, labels: Sequence[str], file: Path) -> None:
    """Draw the share of runs above each normalised score, with its intervals."""
    taus, profiles = statistics.profiles(scores)
    with drawing(file) as [[axes]]:
        for label, found in profiles.items():
            draw_band(axes, taus, label, found, looks(labels))
        axes.set_xlabel("normalised score", fontsize=MEDIUM_TEXT)
        axes.set_ylabel("share of runs with a higher score", fontsize=MEDIUM_TEXT)


def mean_curve(comparison: Comparison, env: str, label: str) -> tuple[np.ndarray, Estimate, np.ndarray] | None:
    """Compute the steps, the mean curve and the seeds' curves in an environment, where every run has an episode.

    Runs that were recorded elsewhere may differ in length. Then the mean is over those that are not over yet.
    """
    records = [record for record in comparison.runs(label, env) if record["last_returns"]]
    lengths = np.array([record["steps"] for record in records])
    longest = lengths.max(initial=0)
    values = pd.DataFrame([curve(record, longest) for record in records], dtype=float)
    # There is no mean before the first episode has ended.
    whole = values.dropna(axis=1)
    if whole.empty:
        return None
    steps = (np.array(whole.columns, dtype=float) + 1) * longest / SPANS
    running = whole.where(steps <= lengths[:, None])
    runs = running.count()
    parts = [running.loc[:, runs == number].dropna() for number in sorted(set(runs), reverse=True)]
    # The runs are the seeds of a single environment.
    found = [statistics.band(part.to_numpy()[:, None]) for part in parts]
    ends = (np.concatenate([getattr(each, name) for each in found]) for name in ("value", "low", "high"))
    return steps, Estimate(*ends), running.to_numpy()


def draw_environment(comparison: Comparison, env: str, file: Path) -> None:
    """Draw the learning curves in an environment."""
    with drawing(file) as [[axes]]:
        for label in comparison.labels:
            if (found := mean_curve(comparison, env, label)) is not None:
                steps, mean, seeds = found
                draw_band(axes, steps, label, mean, looks(comparison.labels), seeds)
        if env in (random := comparison.random_scores):
            axes.axhline(random[env], color="0.6", linewidth=1, label="random policy")
        axes.set_xlabel("environment steps", fontsize=MEDIUM_TEXT)
        axes.set_ylabel("return of an episode", fontsize=MEDIUM_TEXT)
        axes.set_title(env)


def draw_efficiency(comparison: Comparison, shares: np.ndarray, found: Mapping[str, np.ndarray], file: Path) -> None:
    """Draw the means of normalised curves over environments, against the share of the steps and against the time."""
    look = looks(comparison.labels)
    with drawing(file, columns=2, size=(10, 4.2), sharey=True) as [[by_steps, by_time]]:
        for label, of_setting in found.items():
            mean, seeds = statistics.band(of_setting), of_setting.mean(axis=1)
            # NaN if the seconds of any run are not known.
            seconds = np.mean(np.array([run["wall_seconds"] for run in comparison.runs(label)], dtype=float))
            draw_band(by_steps, 100 * shares, label, mean, look, seeds)
            draw_band(by_time, shares * seconds / 60, label, mean, look, seeds)
        by_steps.set_xlabel("% of the environment steps", fontsize=MEDIUM_TEXT)
        by_time.set_xlabel("minutes of a run, mean", fontsize=MEDIUM_TEXT)
        by_steps.set_ylabel("mean normalised score", fontsize=MEDIUM_TEXT)


def list_quantities(comparison: Comparison) -> list[str]:
    """List which of ``QUANTITIES`` the updates logged: none in records of earlier versions."""
    logged = {name for record in comparison.records for name in record.get("training", {})}
    return [name for name in QUANTITIES if name in logged]


def draw_training(comparison: Comparison, file: Path) -> None:
    """Draw the values that updates logged, with a row for each quantity and a column for each environment."""
    names, envs, look = list_quantities(comparison), comparison.envs, looks(comparison.labels)
    size = (2.9 * len(envs) + 0.6, 2.0 * len(names) + 0.4)
    with drawing(file, len(names), len(envs), size) as grid:
        label_grid(grid, envs, "environment steps")
        for row, name in zip(grid, names, strict=True):
            for axes, env in zip(row, envs, strict=True):
                for label in comparison.labels:
                    # At this size, intervals would hide one another.
                    runs = [run for run in comparison.runs(label, env) if name in run.get("training", {})]
                    if runs:
                        mean = pd.DataFrame([run["training"][name] for run in runs], dtype=float).ffill(axis=1).mean()
                        steps = np.arange(1, len(mean) + 1) / len(mean) * np.mean([run["steps"] for run in runs])
                        color, line = look[label]
                        axes.plot(steps, mean, color=color, linestyle=line, linewidth=1.2, label=escape_label(label))
                axes.tick_params(labelsize=SMALL_TEXT)
                if name in ("kl", "kl_coef") and any(np.any(np.asarray(drawn.get_ydata()) > 0) for drawn in axes.lines):
                    axes.set_yscale("log")
            row[0].set_ylabel(QUANTITIES[name], fontsize=SMALL_TEXT)
