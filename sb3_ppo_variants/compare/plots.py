"""Pictures of a comparison, each as PNG, SVG and PDF, and an interactive page of its learning curves.

``labels`` are all settings of the comparison, each with its own style.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import seaborn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from plotly.offline import get_plotlyjs

from sb3_ppo_variants.compare import statistics
from sb3_ppo_variants.compare.paper import FIGURE_3
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
# The line styles in plotly's words.
DASHES = dict(zip(LINES, ["solid", "dash", "dot", "dashdot", "longdashdot"], strict=True))
SMALL_TEXT, MEDIUM_TEXT = 9, 11
# Vector formats that are written besides PNG, for use in papers.
VECTOR = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
# The panels beside each other in the paper's Figure 3.
PANELS = 4
# The logged values to draw, with their names in the picture.
QUANTITIES = {
    "kl": "KL(old || new)",
    "kl_coef": "β",
    "clip_fraction": "share clipped",
    "entropy_loss": "negative entropy",
    "explained_variance": "explained variance",
}
# Properties of the other traces of a setting in the interactive page: the invisible edges of the band around its line,
# or its seeds.
INVISIBLE = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
# The names beside the curves must leave them room: long ones have several lines of this many letters, and in a narrow
# window, figures are scrolled.
WIDEST = 40
CURVES_STYLE = """
body { font: 15px/1.5 sans-serif; margin: 1rem auto; max-width: 75rem; padding: 0 1rem; color: #222 }
body > div { overflow-x: auto } .plotly-graph-div { min-width: 48rem }
"""
# Without the button that sends the data to Plotly.
CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["sendChartToCloud"]}
HELP = "Click a name to hide its line, double-click it to see it alone, drag to enlarge a part."


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
    below: bool = False,
) -> Iterator[np.ndarray]:
    """Yield a grid of axes, and save their picture with a legend to a file at the end of the context.

    :param below: have the legend below the axes and within the size, instead of beside them
    """
    figure, grid = pyplot.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False, sharex="col", sharey=sharey
    )
    yield grid
    handles, labels = max(grid.ravel(), key=lambda axes: len(axes.lines)).get_legend_handles_labels()
    if handles and below:
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=SMALL_TEXT)
    elif handles:
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


def draw_profiles(scores: statistics.Scores, labels: Sequence[str], file: Path, **layout: Any) -> None:
    """Draw the share of runs above each normalised score, with its intervals.

    :param layout: arguments of :func:`drawing`
    """
    taus, profiles = statistics.profiles(scores)
    with drawing(file, **layout) as [[axes]]:
        for label, found in profiles.items():
            draw_band(axes, taus, label, found, looks(labels))
        axes.set_xlabel("normalised score", fontsize=MEDIUM_TEXT)
        axes.set_ylabel("share of runs with a higher score", fontsize=MEDIUM_TEXT)


def draw_orders(names: Sequence[str], signs: np.ndarray, file: Path) -> None:
    """Draw for each pair of settings whether it has the paper's order here, as ``agreement.find_orders`` returns it."""
    meanings = {
        "reversed beyond noise": "#b2182b",
        "reversed within noise": "#f4a582",
        "": "#ffffff",
        "the same within noise": "#a6dba0",
        "the same beyond noise": "#1b7837",
    }
    figure, axes = pyplot.subplots(figsize=[3.5 + 0.42 * len(names)] * 2, layout="constrained")
    axes.imshow(signs, cmap=matplotlib.colors.ListedColormap([*meanings.values()]), vmin=-2.5, vmax=2.5)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=SMALL_TEXT)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL_TEXT)
    axes.set(xlabel="is above this setting in the paper, and here:", ylabel="this setting")
    patches = [matplotlib.patches.Patch(color=color, label=said) for said, color in meanings.items() if said]
    figure.legend(handles=patches, loc="outside upper center", ncols=2, frameon=False, fontsize=SMALL_TEXT)
    save_figure(figure, file)


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
        draw_curves(axes, comparison, env)
        axes.set_xlabel("environment steps", fontsize=MEDIUM_TEXT)
        axes.set_ylabel("return of an episode", fontsize=MEDIUM_TEXT)
        axes.set_title(env)


def draw_curves(axes: Axes, comparison: Comparison, env: str) -> None:
    """Draw the curves of :func:`draw_environment`."""
    for label in comparison.labels:
        if (found := mean_curve(comparison, env, label)) is not None:
            steps, mean, seeds = found
            draw_band(axes, steps, label, mean, looks(comparison.labels), seeds)
    if env in (random := comparison.random_scores):
        axes.axhline(random[env], color="0.6", linewidth=1, label="random policy")


@contextmanager
def panels(comparison: Comparison, file: Path, columns: int, width: float, height: float) -> Iterator[dict[str, Axes]]:
    """Draw the curves in each environment in a panel of its own, and yield the panels before they are saved.

    :param columns: number of panels beside each other
    :param width: that of the picture
    :param height: that of a panel
    """
    rows = math.ceil(len(comparison.envs) / columns)
    with drawing(file, rows, columns, (width, 0.5 + height * rows), below=True) as grid:
        drawn = dict(zip(comparison.envs, grid.ravel(), strict=False))
        for axes in grid.ravel()[len(drawn) :]:
            axes.set_visible(False)
        for env, axes in drawn.items():
            draw_curves(axes, comparison, env)
            axes.set_title(env, fontsize=SMALL_TEXT)
        yield drawn


def draw_figure_3(comparison: Comparison, file: Path) -> None:
    """Draw the curves in all environments in the layout of the paper's Figure 3, with the ends of its curves."""
    look = looks(comparison.labels)
    names = {escape_label(method.label): method.name for method in FIGURE_3}
    with panels(comparison, file, PANELS, 2.6 * PANELS, 2.0) as drawn:
        for env, axes in drawn.items():
            for line in axes.lines:
                line.set_label(names.get(str(line.get_label()), line.get_label()))
            for method in FIGURE_3:
                if method.label in look and env in method.returns:
                    color, _ = look[method.label]
                    axes.plot(1, method.returns[env], "<", color=color, transform=axes.get_yaxis_transform())
            axes.tick_params(labelsize=SMALL_TEXT)


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


def page(comparisons: Iterable[Comparison]) -> str:
    """Make an HTML page with all learning curves and plotly's code, so that it needs no network."""
    parts = []
    for comparison in comparisons:
        if comparison.envs:
            parts.append(f"<h2>{escape(comparison.title)} ({comparison.name})</h2>")
            for number, env in enumerate(comparison.envs):
                where = f"{comparison.name}-{number}"
                figure = interactive_curves(comparison, env)
                parts.append(figure.to_html(full_html=False, include_plotlyjs=False, div_id=where, config=CONFIG))
    return document(
        "Learning curves", CURVES_STYLE, f"<script>{get_plotlyjs()}</script>\n<p>{HELP}</p>\n" + "\n".join(parts)
    )


def document(title: str, style: str, body: str) -> str:
    """Make an HTML page that fits the width of any screen."""
    head = '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">'
    return f"<!doctype html>\n{head}\n<title>{title}</title>\n<style>{style}</style>\n{body}"


def interactive_curves(comparison: Comparison, env: str) -> go.Figure:
    """Draw the learning curves in an environment, with buttons that choose what they are drawn over."""
    figure = go.Figure()
    minutes: list[list[float]] = []
    for label, (color, line) in looks(comparison.labels).items():
        if (found := mean_curve(comparison, env, label)) is None:
            continue
        steps, band, seeds = found
        look = {"color": to_hex(color), "dash": DASHES[line]}
        # Plotly takes tags for markup, but knows no entities for quotes.
        name = "<br>".join(escape(line, quote=False) for line in wrap(label, WIDEST))
        figure.add_scatter(x=steps, y=band.value, name=name, legendgroup=label, mode="lines", line=look)
        if band.is_certain:
            fill = f"rgba{(*(round(255 * part) for part in color), 0.15)}"
            figure.add_scatter(x=steps, y=band.low, legendgroup=label, **INVISIBLE)
            figure.add_scatter(x=steps, y=band.high, legendgroup=label, fill="tonexty", fillcolor=fill, **INVISIBLE)
        else:
            for seed in seeds:
                figure.add_scatter(x=steps, y=seed, legendgroup=label, **{**INVISIBLE, "line": {**look, "width": 0.6}})
        runs = pd.DataFrame(comparison.runs(label, env), columns=["wall_seconds", "steps"], dtype=float)
        # NaN if the seconds of any run are not known.
        pace = runs["wall_seconds"].sum(skipna=False) / runs["steps"].sum()
        minutes += (len(figure.data) - len(minutes)) * [(steps * pace / 60).tolist()]
    if env in (random := comparison.random_scores):
        figure.add_hline(random[env], line_color="#999999", annotation_text="random policy")
    over = {"environment steps": [trace.x.tolist() for trace in figure.data], "minutes of a run, mean": minutes}
    arguments = {name: [{"x": x}, {"xaxis.title.text": name}] for name, x in over.items()}
    buttons = [{"label": name, "method": "update", "args": args} for name, args in arguments.items()]
    menu = {"type": "buttons", "direction": "right", "x": 1, "xanchor": "right", "y": 1.15, "buttons": buttons}
    figure.update_layout(
        title=escape(env, quote=False), height=560, template="plotly_white", xaxis_title="environment steps",
        yaxis_title="return of an episode", updatemenus=[menu],
        # Otherwise only the first letters of a name are shown beside a point.
        hoverlabel={"namelength": -1},
    )  # fmt: skip
    return figure
