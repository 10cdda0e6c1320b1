"""The curves of a comparison as an interactive page, which needs no network. Lines can be hidden and parts enlarged."""

from collections.abc import Iterable, Sequence
from html import escape
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go
from matplotlib.colors import to_hex
from plotly.offline import get_plotlyjs

from sb3_ppo_variants.compare.curve_plots import learned, pace
from sb3_ppo_variants.compare.plots import Line, looks
from sb3_ppo_variants.compare.scores import Comparison, random_scores

DASHES: dict[Line, str] = {"solid": "solid", "dashed": "dash", "dotted": "dot", "dashdot": "dashdot"}
# Properties of the other traces of a setting: the invisible edges of the band around its line, or its seeds.
INVISIBLE = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
# The names beside the curves must leave them room: long ones have several lines of this many letters, and in a narrow
# window, figures are scrolled.
WIDEST = 40
STYLE = """
body { font: 15px/1.5 sans-serif; margin: 1rem auto; max-width: 75rem; padding: 0 1rem; color: #222 }
body > div { overflow-x: auto } .plotly-graph-div { min-width: 48rem }
"""
# Without the button that sends the data to Plotly.
CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["sendChartToCloud"]}
HELP = "Click a name to hide its line, double-click it to see it alone, drag to enlarge a part."


def page(comparisons: Iterable[Comparison]) -> str:
    """Return an HTML page with the learning curves in all environments, which includes plotly's code."""
    parts = []
    for comparison in comparisons:
        if comparison.envs:
            parts.append(f"<h2>{escape(comparison.title)}</h2>")
            for number, env in enumerate(comparison.envs):
                where = f"{comparison.name}-{number}"
                figure = _figure(comparison, env)
                parts.append(figure.to_html(full_html=False, include_plotlyjs=False, div_id=where, config=CONFIG))
    return document("Learning curves", STYLE, f"<script>{get_plotlyjs()}</script>\n<p>{HELP}</p>\n" + "\n".join(parts))


def document(title: str, style: str, body: str) -> str:
    """Return an HTML page that fits the width of any screen."""
    head = '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">'
    return f"<!doctype html>\n{head}\n<title>{title}</title>\n<style>{style}</style>\n{body}"


def _figure(comparison: Comparison, env: str) -> go.Figure:
    figure = go.Figure()
    by_steps: list[np.ndarray] = []
    by_minutes: list[np.ndarray] = []
    colors, lines = looks(comparison.labels)
    for label in comparison.labels:
        if (found := learned(comparison, env, label)) is None:
            continue
        steps, band = found
        dash = DASHES.get(lines[label], "longdashdot")
        look = {"color": to_hex(colors[label]), "dash": dash}
        name = "<br>".join(map(_plain, wrap(label, WIDEST)))
        figure.add_scatter(x=steps, y=band.mean, name=name, legendgroup=label, mode="lines", line=look)
        if band.is_certain:
            fill = f"rgba{(*(round(255 * part) for part in colors[label]), 0.15)}"
            figure.add_scatter(x=steps, y=band.low, legendgroup=label, **INVISIBLE)
            figure.add_scatter(x=steps, y=band.high, legendgroup=label, fill="tonexty", fillcolor=fill, **INVISIBLE)
        else:
            for seed in band.seeds:
                figure.add_scatter(x=steps, y=seed, legendgroup=label, **{**INVISIBLE, "line": {**look, "width": 0.6}})
        drawn = len(figure.data) - len(by_steps)
        by_steps += drawn * [steps]
        by_minutes += drawn * [steps * pace(comparison, env, label) / 60]
    if env in (random := random_scores(comparison)):
        figure.add_hline(random[env], line_color="#999999", annotation_text="random policy")
    figure.update_layout(
        title=_plain(env), height=560, template="plotly_white", xaxis_title="environment steps",
        yaxis_title="return of an episode", updatemenus=[_axis(by_steps, by_minutes)],
        # Otherwise only the first letters of a name are shown beside a point.
        hoverlabel={"namelength": -1},
    )  # fmt: skip
    return figure


def _plain(text: str) -> str:
    """Return a text that plotly shows as it is. It takes tags for markup, but knows no entities for quotes."""
    return escape(text, quote=False)


def _axis(by_steps: Sequence[np.ndarray], by_minutes: Sequence[np.ndarray]) -> dict[str, object]:
    """Return buttons that choose what the curves are drawn over."""
    names = {"environment steps": by_steps, "minutes of a run, mean": by_minutes}
    buttons = [
        {"label": name, "method": "update", "args": [{"x": [x.tolist() for x in of]}, {"xaxis.title.text": name}]}
        for name, of in names.items()
    ]
    return {"type": "buttons", "direction": "right", "x": 1, "xanchor": "right", "y": 1.15, "buttons": buttons}
