"""Pictures of a comparison, each as PNG, SVG and PDF. ``labels`` are all its settings, each with its own style."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np
import seaborn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sb3_ppo_variants.compare.intervals import Band, Estimate

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
    axes: Axes, x: np.ndarray, label: str, found: Band, look: tuple[Mapping[str, Color], Mapping[str, Line]]
) -> None:
    """Draw the curve of a setting with its interval, or if there is none, with a thin line for each seed."""
    colors, lines = look
    axes.plot(x, found.mean, color=colors[label], linestyle=lines[label], label=shown(label))
    if found.is_certain:
        axes.fill_between(x, found.low, found.high, color=colors[label], alpha=0.15, linewidth=0)
    elif len(found.seeds) > 1:
        axes.plot(x, found.seeds.T, color=colors[label], linestyle=lines[label], linewidth=0.5, alpha=0.6)
    axes.grid(alpha=0.3)
    seaborn.despine(ax=axes)


def aggregates(
    estimates: Mapping[str, Estimate], scores: Mapping[str, np.ndarray], labels: Sequence[str], file: Path
) -> None:
    """Draw the mean score of each setting as a line, its interval as a bar, and each seed as a circle.

    :param scores: scores of shape ``(seeds, environments)``, by setting; a circle is a mean over environments
    """
    colors, _ = looks(labels)
    figure, axes = pyplot.subplots(figsize=(6.5, 0.9 + 0.34 * len(estimates)))
    for height, (label, estimate) in enumerate(estimates.items()):
        color = colors[label]
        if estimate.is_certain:
            axes.barh(height, estimate.high - estimate.low, left=estimate.low, height=0.6, color=color, alpha=0.35)
        axes.plot([estimate.value] * 2, [height - 0.3, height + 0.3], color=color, linewidth=2)
        seeds = scores[label].mean(axis=1)
        axes.plot(seeds, [height] * len(seeds), "o", color=color, markersize=4, fillstyle="none")
    axes.set_yticks(range(len(estimates)), list(map(shown, estimates)), fontsize=SMALL)
    axes.set_xlabel("mean normalised score", fontsize=MEDIUM)
    # Otherwise, the bar that begins first would begin at the axis.
    axes.use_sticky_edges = False
    axes.autoscale_view()
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    seaborn.despine(ax=axes)
    save(figure, file)


def performance_profiles(profiles: Mapping[str, Band], taus: np.ndarray, labels: Sequence[str], file: Path) -> None:
    """Draw the share of runs above each normalised score, with its intervals."""
    look = looks(labels)
    with drawn(file) as axes:
        for label, found in profiles.items():
            band(axes, taus, label, found, look)
        axes.set_xlabel("normalised score", fontsize=MEDIUM)
        axes.set_ylabel("share of runs with a higher score", fontsize=MEDIUM)


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
