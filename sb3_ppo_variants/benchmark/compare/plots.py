"""Pictures of a comparison."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import seaborn
from matplotlib import pyplot
from matplotlib.axes import Axes
from scipy.stats import bootstrap

from sb3_ppo_variants.benchmark.compare.execution import SPANS
from sb3_ppo_variants.benchmark.compare.scores import Comparison, random_scores
from sb3_ppo_variants.benchmark.compare.settings import ALGORITHMS
from sb3_ppo_variants.benchmark.compare.statistics import TAUS, Estimate, Profile

STYLES = ("-", "--", ":", "-.")
RESAMPLES = 1000
# Inches. Names of lines nearer to each other than this would overlap.
LABEL_HEIGHT = 0.16
SMALLEST, FRAME = 3.6, 1.2
# Points of a curve are means over so many spans, so that a picture shows trends.
SMOOTHED = 5


def looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and line of each setting: a colour for each algorithm, which the colour-blind tell apart too."""
    names = list(dict.fromkeys([*ALGORITHMS, *(label.split(" ")[0] for label in labels)]))
    palette = seaborn.color_palette("colorblind").as_hex()
    found: dict[str, dict[str, Any]] = {}
    for label in labels:
        name = label.split(" ")[0]
        before = sum(other.split(" ")[0] == name for other in found)
        color = palette[names.index(name) % len(palette)]
        found[label] = {"color": color, "linestyle": STYLES[before % len(STYLES)]}
    return found


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """Heights as near to those given as keeps them apart.

    :param heights: wanted heights
    :param distance: least distance of any two
    :return: heights in the same order
    """
    order = np.argsort(heights, kind="stable")
    steps = np.arange(len(heights)) * distance
    # Without the distances they only have to rise. Neighbours that do not are set to their common mean.
    blocks: list[list[float]] = []
    for value in np.asarray(heights, float)[order] - steps:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    placed = np.concatenate([np.full(len(block), np.mean(block)) for block in blocks]) + steps
    result = np.empty(len(heights))
    result[order] = placed
    return result.tolist()


def inches_for(names: int) -> float:
    """Inches of a picture with so many names above each other."""
    return max(SMALLEST, FRAME + 2 * LABEL_HEIGHT * names)


@contextmanager
def picture(file: Path, names: int, x: str, y: str, title: str = "") -> Iterator[Axes]:
    """Axes whose picture is saved in a file, with room for so many names above each other."""
    # Draws into files, without a window.
    matplotlib.use("agg")
    figure, axes = pyplot.subplots(figsize=(7.2, inches_for(names)), layout="constrained")
    try:
        yield axes
        axes.set(xlabel=x, ylabel=y, title=title)
        seaborn.despine(figure)
        figure.savefig(file, dpi=90)
    finally:
        pyplot.close(figure)


def _name_lines(axes: Axes, ends: Mapping[str, tuple[float, float]], styles: Mapping[str, dict[str, str]]) -> None:
    """Write the name of each line beside its end."""
    if not ends:
        return
    low, high = axes.get_ylim()
    inches = inches_for(len(styles)) - FRAME
    heights = spread([y for _, y in ends.values()], LABEL_HEIGHT / inches * (high - low))
    right = max((x for x, _ in ends.values()), default=0.0)
    left = axes.get_xlim()[0]
    axes.set_xlim(left, right)
    for (label, (_, y)), height in zip(ends.items(), heights, strict=True):
        style = styles[label]
        axes.annotate(
            label,
            xy=(right, y),
            xytext=(right + 0.05 * (right - left), height),
            color=style["color"],
            va="center",
            fontsize=8,
            annotation_clip=False,
            # From the end of the line to the left of its name.
            arrowprops={"arrowstyle": "-", "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0, "linewidth": 1, **style},
        )


def curves(comparison: Comparison, env: str, file: Path) -> None:
    """The learning curves in an environment: means over seeds with 95% bootstrap intervals.

    :param comparison: the records
    :param env: the environment
    :param file: a PNG file
    """
    styles = looks(comparison.labels)
    ends: dict[str, tuple[float, float]] = {}
    random = random_scores(comparison).get(env)
    with picture(file, len(styles), "environment steps", "return of an episode", env) as axes:
        for label in comparison.labels:
            records = [r for r in comparison.records if (r["env"], r["label"]) == (env, label) and r["last_returns"]]
            if not records:
                continue
            seeds = np.array([smooth(record["curve"]) for record in records])
            steps = np.arange(1, SPANS + 1) / SPANS * np.mean([record["steps"] for record in records])
            mean = seeds.mean(axis=0)
            axes.plot(steps, mean, linewidth=1.5, **styles[label])
            known = np.isfinite(mean)
            if len(seeds) > 1 and known.any():
                band = _interval(seeds[:, known])
                axes.fill_between(steps[known], *band, color=styles[label]["color"], alpha=0.1, linewidth=0)
            if known[-1]:
                ends[label] = float(steps[-1]), float(mean[-1])
        if random is not None:
            axes.axhline(random, color="0.6", linewidth=0.8)
            place = ("axes fraction", "data")
            axes.annotate("random policy", (0.01, random), xycoords=place, color="0.4", fontsize=7, va="bottom")
        axes.locator_params(axis="x", nbins=5)
        _name_lines(axes, ends, styles)


def _interval(seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95% bootstrap interval of the mean of each column, shape ``(seeds, columns)``."""
    found = bootstrap((seeds,), np.mean, axis=0, method="percentile", n_resamples=RESAMPLES, vectorized=True, rng=0)
    return found.confidence_interval.low, found.confidence_interval.high


def smooth(curve: list[float | None]) -> np.ndarray:
    """A curve for the eye: a moving mean, in which spans without an episode have the value of the span before."""
    return pd.Series(curve, dtype=float).ffill().rolling(SMOOTHED, min_periods=1).mean().to_numpy()


def intervals(estimates: Mapping[str, Estimate], quantity: str, file: Path) -> None:
    """A point with its interval for each setting.

    :param estimates: the numbers
    :param quantity: what they are
    :param file: a PNG file
    """
    styles = looks(list(estimates))
    with picture(file, len(styles), quantity, "") as axes:
        for row, (label, estimate) in enumerate(reversed(list(estimates.items()))):
            color = styles[label]["color"]
            axes.plot([estimate.low, estimate.high], [row, row], color=color, linewidth=6, alpha=0.35)
            axes.plot(estimate.value, row, "o", color=color)
        axes.set_yticks(range(len(estimates)), list(estimates)[::-1])


def performance_profiles(profiles: Mapping[str, Profile], file: Path) -> None:
    """The share of runs above each normalised score, with 95% bootstrap intervals.

    :param profiles: the profile of each setting
    :param file: a PNG file
    """
    styles = looks(list(profiles))
    with picture(file, len(styles), "normalised score", "share of runs with a higher score") as axes:
        for label, profile in profiles.items():
            axes.plot(TAUS, profile.share, drawstyle="steps-post", linewidth=1.5, label=label, **styles[label])
            axes.fill_between(TAUS, profile.low, profile.high, color=styles[label]["color"], alpha=0.12, lw=0)
        # All lines end at 0, where there is no room for names.
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
