"""The style of the pictures: SVG on white, which is legible on light and dark pages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import seaborn
from cycler import cycler
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine

from sb3_ppo_variants.compare.plots import COLORS, WIDTH

# Beyond the style of reports, whose pictures have text of the same size.
STYLE: Any = {
    "mathtext.fontset": "cm",
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.edgecolor": "0.35",
    "axes.prop_cycle": cycler(color=COLORS),
    "xtick.color": "0.25",
    "ytick.color": "0.25",
    "lines.linewidth": 2.2,
    "lines.solid_capstyle": "round",
}
PLAIN = "#8a8f98"
CLIP, FIXED, ADAPTIVE = COLORS[:3]


def shades(palette: str, number: int) -> Sequence[str]:
    """Return colours from light to dark, for a growing coefficient."""
    return seaborn.color_palette(palette, number).as_hex()


@contextmanager
def picture(
    file: Path, rows: int = 1, columns: int = 2, height: float = 3.3, sharey: bool = False
) -> Iterator[np.ndarray]:
    """Yield axes in an array, and save the picture to a file at the end of the context."""
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
        figure, grid = pyplot.subplots(
            rows, columns, figsize=(WIDTH, height), squeeze=False, layout=layout, sharey=sharey
        )
        yield grid
        figure.savefig(file, facecolor="white", metadata={"Date": None})
        pyplot.close(figure)


def below(axes: Axes, columns: int) -> None:
    """Add a legend for the lines in these axes, below the whole figure."""
    figure = axes.get_figure()
    assert figure is not None
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
