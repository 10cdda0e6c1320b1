"""Pictures of a comparison, each as PNG, SVG and PDF. ``labels`` are all its settings, each with its own style."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Literal, TypeVar

import matplotlib
import numpy as np
import seaborn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rliable import plot_utils

from sb3_ppo_variants.benchmark.compare.paper import Estimate
from sb3_ppo_variants.benchmark.compare.statistics import Intervals

Value = TypeVar("Value")
Color = tuple[float, float, float]
Line = Literal["solid", "dashed", "dotted", "dashdot"] | tuple[float, tuple[float, ...]]
# Pictures are drawn to files, without a window. The same records always give the same files.
matplotlib.use("agg")
matplotlib.rcParams.update({"svg.hashsalt": "sb3_ppo_variants", "pdf.fonttype": 42})
# Twelve colours and five line styles have no common divisor, so that sixty settings look different.
COLORS = [*seaborn.color_palette("tab10"), (0.0, 0.0, 0.5), (1.0, 0.8, 0.0)]
LINES: list[Line] = ["solid", "dashed", "dotted", "dashdot", (0, (6, 1, 1, 1, 1, 1))]
SMALL, MEDIUM = 9, 11
# Vector formats that are written besides PNG, for use in papers.
VECTOR = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def looks(labels: Sequence[str]) -> tuple[dict[str, Color], dict[str, Line]]:
    """Return a colour and a line style for each setting."""
    return dict(zip(labels, cycle(COLORS), strict=False)), dict(zip(labels, cycle(LINES), strict=False))


def shown(label: str) -> str:
    """Return the text with which Matplotlib shows a label unchanged."""
    # Text between dollars would be a formula, and a line whose label begins with an underscore has no legend.
    text = label.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _shown(by_label: Mapping[str, Value]) -> dict[str, Value]:
    return {shown(label): value for label, value in by_label.items()}


def save(figure: Figure, file: Path) -> None:
    """Write a figure to a PNG file, and to an SVG and a PDF file next to it."""
    # A tight bounding box leaves room for all names.
    figure.savefig(file, dpi=130, bbox_inches="tight")
    for suffix, metadata in VECTOR.items():
        figure.savefig(file.with_suffix(suffix), bbox_inches="tight", metadata=metadata)
    pyplot.close(figure)


def legend(figure: Figure, axes: Axes) -> None:
    """Add a legend for the lines in these axes, to the right of the figure."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        # The legend is outside the figure, so the picture grows with it, however long the names are.
        figure.legend(handles, labels, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=SMALL)


@contextmanager
def drawn(file: Path) -> Iterator[Axes]:
    """Yield axes, and save their picture with a legend to a file at the end of the context."""
    figure, axes = pyplot.subplots(figsize=(6.5, 4.5), layout="constrained")
    yield axes
    legend(figure, axes)
    save(figure, file)


def band(
    axes: Axes, x: np.ndarray, label: str, intervals: Intervals, look: tuple[Mapping[str, Color], Mapping[str, Line]]
) -> None:
    """Draw the curve of a setting with its interval."""
    points, ends = intervals
    colors, lines = look
    axes.plot(x, points[label], color=colors[label], linestyle=lines[label], label=shown(label))
    axes.fill_between(x, *ends[label], color=colors[label], alpha=0.15, linewidth=0)
    axes.grid(alpha=0.3)
    seaborn.despine(ax=axes)


def aggregates(estimates: Mapping[str, Mapping[str, Estimate]], labels: Sequence[str], file: Path) -> None:
    """Draw the intervals of each setting's aggregates as bars, with a line at each estimate.

    An estimate from a single seed, which has no interval, is a dot.
    """
    colors = _shown(looks(labels)[0])
    # rliable draws the first setting at the bottom.
    rows = _shown({label: list(estimates[label].values()) for label in reversed(list(estimates))})
    figure, _ = plot_utils.plot_interval_estimates(
        {label: [estimate.value for estimate in row] for label, row in rows.items()},
        {label: np.array([[e.low for e in row], [e.high for e in row]]) for label, row in rows.items()},
        metric_names=list(next(iter(estimates.values()))),
        colors=colors,
        xlabel="normalised score",
        # Keeps the label below the numbers of the axis, whatever the height of the picture.
        xlabel_y_coordinate=0.1 - 1.7 / len(rows),
        # Keeps the numbers of neighbouring axes apart.
        wspace=0.25,
    )
    for place, axes in enumerate(figure.axes):
        for height, (label, row) in enumerate(rows.items()):
            if not row[place].is_certain:
                axes.plot(row[place].value, height, "o", markersize=9, color=colors[label])
        axes.use_sticky_edges = False
        axes.autoscale_view()
    save(figure, file)


def performance_profiles(profiles: Intervals, taus: np.ndarray, labels: Sequence[str], file: Path) -> None:
    """Draw the share of runs above each normalised score, with 95% bootstrap intervals."""
    colors, lines = looks(labels)
    shares, intervals = profiles
    with drawn(file) as axes:
        plot_utils.plot_performance_profiles(
            _shown(shares), taus, _shown(intervals), colors=_shown(colors), linestyles=_shown(lines), ax=axes,
            labelsize=MEDIUM, ticklabelsize=SMALL, xlabel="normalised score",
            ylabel="share of runs with a higher score",
        )  # fmt: skip


def orders(names: Sequence[str], signs: np.ndarray, file: Path) -> None:
    """Draw for each pair of settings whether it has the paper's order here, with the paper's best setting first.

    :param signs: the array that ``paper.orders`` returns: for settings of which the i-th is above the j-th in the
        paper, ``[i, j]`` is 2 (beyond noise) or 1 (within noise) if it is above here too, and -2 or -1 if the order is
        reversed here. All other elements are 0
    """
    colors = ["#b2182b", "#f4a582", "#ffffff", "#a6dba0", "#1b7837"]
    meanings = ["reversed beyond noise", "reversed within noise", "", "the same within noise", "the same beyond noise"]
    size = 3.5 + 0.42 * len(names)
    figure, axes = pyplot.subplots(figsize=(size, size), layout="constrained")
    axes.imshow(signs, cmap=matplotlib.colors.ListedColormap(colors), vmin=-2.5, vmax=2.5)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=SMALL)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.set(xlabel="is above this setting in the paper, and here:", ylabel="this setting")
    patches = [
        matplotlib.patches.Patch(color=color, label=meaning)
        for color, meaning in zip(colors, meanings, strict=True)
        if meaning
    ]
    figure.legend(handles=patches, loc="outside upper center", ncols=2, frameon=False, fontsize=SMALL)
    save(figure, file)
