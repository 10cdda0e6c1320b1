"""Pictures of what was measured: figure 2 of the paper, estimates of the KL, and learning curves."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sb3_ppo_variants.benchmark.compare import records, scores, statistics
from sb3_ppo_variants.benchmark.compare.paper import TABLE_1
from sb3_ppo_variants.benchmark.figures import estimators, interpolation
from sb3_ppo_variants.benchmark.figures.look import ADAPTIVE, CLIP, FIXED, PLAIN, below, picture, shades
from sb3_ppo_variants.objectives.kl_penalized import TOLERANCE

TABLE = Path("results/table1-200k.jsonl.gz")
SURROGATES = {
    "kl": (r"$\mathbb{E}[\mathrm{KL}]$", "#b03a5b", "solid"),
    "unclipped": (r"$\mathbb{E}[rA]$", PLAIN, "solid"),
    "clip without minimum": (r"$\mathbb{E}[\mathrm{clip}(r)A]$", "#7fb2dc", "dashed"),
    "clip": (r"$L^{CLIP} = \mathbb{E}[\min(rA,\ \mathrm{clip}(r)A)]$", CLIP, "solid"),
}
PENALTIES = {"kl_coef=0.3": r"$\beta = 0.3$", "kl_coef=1": r"$\beta = 1$", "kl_coef=3": r"$\beta = 3$"}


def _along(file: Path, drawn: dict[str, tuple[str, str, str]], data: Path) -> None:
    found = json.loads(data.read_text())
    with picture(file, columns=1, height=4.3) as grid:
        axes = grid[0, 0]
        for name, (label, color, line) in drawn.items():
            lines = np.array([each["values"][name] for each in found["lines"]])
            axes.plot(found["factors"], lines.T, color=color, linewidth=0.7, alpha=0.4)
            axes.plot(found["factors"], lines.mean(axis=0), color=color, linestyle=line, label=label)
        axes.axvline(1, color="0.75", linewidth=1, zorder=0)
        axes.set(
            xlim=(0, 2), ylim=(-0.03, 0.11), xlabel="linear interpolation factor: 0 is the old policy, 1 the updated"
        )
        axes.legend(loc="upper left")


def interpolated(file: Path, data: Path = interpolation.RESULTS) -> None:
    """Draw figure 2 of the paper."""
    _along(file, SURROGATES, data)


def interpolated_penalty(file: Path, data: Path = interpolation.RESULTS) -> None:
    """Draw the penalised objective along the same line."""
    colors = shades("flare", len(PENALTIES))
    penalties = {n: (t, c, "solid") for (n, t), c in zip(PENALTIES.items(), colors, strict=True)}
    _along(file, {"unclipped": SURROGATES["unclipped"], **penalties}, data)


def learned(file: Path, labels: Sequence[str], colors: Sequence[str], data: Path = TABLE) -> None:
    """Draw the learning curves of some settings over the seven environments of Table 1."""
    (comparison,) = scores.comparisons(records.unpack(data)[0])
    shares, curves = scores.normalised_curves(comparison, scores.table(comparison))
    steps = shares * comparison.records[0]["steps"]
    points, ends = statistics.efficiency({label: curves[label] for label in labels})
    names = {row.label: row.name for row in TABLE_1}
    with picture(file, columns=1, height=4.2) as grid:
        axes = grid[0, 0]
        for label, color in zip(labels, colors, strict=True):
            axes.plot(steps, points[label], color=color, label=names[label])
            axes.fill_between(steps, *ends[label], color=color, alpha=0.13, linewidth=0)
        axes.set(xlabel="environment steps", ylabel="IQM of normalised scores", xlim=(0, None), ylim=(0, None))
        axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}k")
        axes.legend(loc="upper left")


def kl_estimates(file: Path, data: Path = estimators.RESULTS) -> None:
    """Draw estimates of the KL beside the exact one: over the rollout, and their noise in a minibatch."""
    runs = [run for run in json.loads(data.read_text())["runs"] if run["algorithm"] == "ppo_clip"]
    colors = dict(zip(estimators.NAMES, ("0.15", FIXED, CLIP, ADAPTIVE), strict=True))
    with picture(file, height=3.9) as grid:
        for axes, what in zip(grid[0], ("means", "deviations"), strict=True):
            for name in estimators.NAMES:
                values = _all(runs, what, name)
                line = "dashed" if name == estimators.NAMES[0] else "solid"
                axes.plot(_steps(values), values.mean(axis=0), color=colors[name], linestyle=line, label=name)
            axes.set(xlabel="environment steps", ylim=(0, None))
            axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}k")
        grid[0, 0].set_title("mean over the rollout")
        grid[0, 1].set_title(f"standard deviation of a minibatch of {estimators.MINIBATCH}")
        below(grid[0, 0], columns=4)


def adapted(file: Path, data: Path = estimators.RESULTS) -> None:
    """Draw β and the exact KL over training runs of ``PPOAdaptiveKL``."""
    runs = [run for run in json.loads(data.read_text())["runs"] if run["algorithm"] == "ppo_adaptive_kl"]
    with picture(file, height=3.6) as grid:
        coefficients, divergences = np.array([run["kl_coef"] for run in runs]), _all(runs, "means", "exact")
        for axes, values, title in zip(grid[0], (coefficients, divergences), (r"$\beta$", "exact KL"), strict=True):
            axes.plot(_steps(values), values.T, color=ADAPTIVE, linewidth=1.1, alpha=0.75)
            axes.set(title=title, xlabel="environment steps", yscale="log")
            axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}k")
        target = estimators.DESIRED_KL
        grid[0, 1].axhspan(target / TOLERANCE, target * TOLERANCE, color=ADAPTIVE, alpha=0.16, linewidth=0)


def _all(runs: list[dict[str, Any]], what: str, name: str) -> np.ndarray:
    """Shape ``(seeds, updates)``."""
    return np.array([run[what][name] for run in runs])


def _steps(values: np.ndarray) -> np.ndarray:
    """The environment steps at which the updates were made."""
    return 2048 * np.arange(1, values.shape[1] + 1)
