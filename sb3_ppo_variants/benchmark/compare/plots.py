"""Pictures of a comparison in PNG files, drawn by rliable with a look for each of ``labels``, all of its settings."""

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
from rliable import plot_utils

from sb3_ppo_variants.benchmark.compare.execution import SPANS
from sb3_ppo_variants.benchmark.compare.paper import Estimate
from sb3_ppo_variants.benchmark.compare.scores import Comparison, random_scores
from sb3_ppo_variants.benchmark.compare.statistics import TAUS, Intervals, bands

Color = tuple[float, float, float]
Line = Literal["solid", "dashed", "dotted", "dashdot"] | tuple[float, tuple[float, ...]]
# The pictures go into files, without a window.
matplotlib.use("agg")
# Twelve and five have no common divisor, so that sixty settings look different.
COLORS = [*seaborn.color_palette("tab10"), (0.0, 0.0, 0.5), (1.0, 0.8, 0.0)]
LINES: list[Line] = ["solid", "dashed", "dotted", "dashdot", (0, (6, 1, 1, 1, 1, 1))]
# Points of a curve are means over so many spans, so that a picture shows trends.
SMOOTHED = 5
SMALL, MEDIUM = 9, 11


def looks(labels: Sequence[str]) -> tuple[dict[str, Color], dict[str, Line]]:
    """A colour and a style of line for each setting."""
    return dict(zip(labels, cycle(COLORS), strict=False)), dict(zip(labels, cycle(LINES), strict=False))


def _save(figure: Figure, file: Path) -> None:
    # A tight box has room for all names.
    figure.savefig(file, dpi=90, bbox_inches="tight")
    pyplot.close(figure)


@contextmanager
def _axes(file: Path) -> Iterator[Axes]:
    """Axes whose picture is saved in a file, with a legend beside it."""
    figure, axes = pyplot.subplots(figsize=(6.5, 4.5))
    yield axes
    if axes.lines:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=SMALL)
    _save(figure, file)


def curves(comparison: Comparison, env: str, file: Path) -> None:
    """Draw the learning curves in an environment: means over seeds with 95% bootstrap intervals."""
    colors, lines = looks(comparison.labels)
    with _axes(file) as axes:
        for label in comparison.labels:
            records = [r for r in comparison.records if (r["env"], r["label"]) == (env, label) and r["last_returns"]]
            if not records:
                continue
            steps = np.arange(1, SPANS + 1) / SPANS * np.mean([record["steps"] for record in records])
            points, intervals = bands({label: np.array([smooth(record["curve"]) for record in records])})
            plot_utils.plot_sample_efficiency_curve(
                steps, points, intervals, colors=colors, ax=axes, marker="", labelsize=MEDIUM, ticklabelsize=SMALL,
                xlabel="environment steps", ylabel="return of an episode",
            )  # fmt: skip
            axes.lines[-1].set_linestyle(lines[label])
        if env in (random := random_scores(comparison)):
            axes.axhline(random[env], color="0.6", linewidth=1, label="random policy")
        axes.set_title(env)


def smooth(curve: Sequence[float | None]) -> np.ndarray:
    """A curve for the eye: a moving mean, in which spans without an episode have the value of the span before."""
    return pd.Series(curve, dtype=float).ffill().rolling(SMOOTHED, min_periods=1).mean().to_numpy()


def aggregates(estimates: Mapping[str, Mapping[str, Estimate]], labels: Sequence[str], file: Path) -> None:
    """Draw a bar from end to end of the interval of each setting's aggregates, with a line at the estimate."""
    # The first is drawn at the bottom.
    rows = {label: list(estimates[label].values()) for label in reversed(list(estimates))}
    figure, _ = plot_utils.plot_interval_estimates(
        {label: [estimate.value for estimate in row] for label, row in rows.items()},
        {label: np.array([[e.low for e in row], [e.high for e in row]]) for label, row in rows.items()},
        metric_names=list(next(iter(estimates.values()))),
        colors=looks(labels)[0],
        xlabel="normalised score",
        # Below the numbers of the axis, however low the picture is.
        xlabel_y_coordinate=0.1 - 1.7 / len(rows),
    )
    for axes in figure.axes:
        axes.use_sticky_edges = False
        axes.autoscale_view()
    _save(figure, file)


def performance_profiles(profiles: Intervals, labels: Sequence[str], file: Path) -> None:
    """Draw the share of runs above each normalised score, with 95% bootstrap intervals."""
    colors, lines = looks(labels)
    shares, intervals = profiles
    with _axes(file) as axes:
        plot_utils.plot_performance_profiles(
            shares, TAUS, intervals, colors=colors, linestyles=lines, ax=axes, labelsize=MEDIUM, ticklabelsize=SMALL,
            xlabel="normalised score", ylabel="share of runs with a higher score",
        )  # fmt: skip
