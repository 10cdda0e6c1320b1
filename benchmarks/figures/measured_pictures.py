"""Pictures of measurements: figure 2 of the paper, and learning curves."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import EngFormatter

from benchmarks.figures import interpolation
from benchmarks.figures.look import CLIP, PLAIN, picture, shades
from benchmarks.paper import TABLE_1
from sb3_ppo_variants.compare import ALGORITHM_PATHS, records, scores, statistics

TABLE = Path("results/table1-text.jsonl.gz")
OBJECTIVES = Path("results/objectives-500k.jsonl.gz")
SPEEDS = Path("results/throughput-bars.json")
WORKLOADS = {
    "cartpole": "CartPole, 8 environments",
    "halfcheetah-normalized": "HalfCheetah, VecNormalize",
    "halfcheetah": "HalfCheetah",
    "pendulum-gsde": "Pendulum, gSDE, 4 environments",
    "cartpole-zoo": "CartPole, the RL Zoo's settings",
    "halfcheetah-zoo": "HalfCheetah, the RL Zoo's settings",
    "humanoid": "Humanoid",
    "breakout-ale": "Breakout, ours on ALE's vector environment",
}
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
            x, lines = found["factors"], np.array([each["values"][name] for each in found["lines"]])
            axes.fill_between(x, lines.min(axis=0), lines.max(axis=0), color=color, alpha=0.13, linewidth=0)
            axes.plot(x, lines.mean(axis=0), color=color, linestyle=line, label=label)
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
    (comparison,) = scores.comparisons(records.read(data))
    shares, curves = comparison.curves
    steps = shares * comparison.records[0]["steps"]
    names = {row.label: row.name for row in TABLE_1}
    with picture(file, columns=1, height=4.2) as grid:
        axes = grid[0, 0]
        for label, color in zip(labels, colors, strict=True):
            found = statistics.estimate(curves[label])
            axes.plot(steps, found.value, color=color, label=names[label])
            axes.fill_between(steps, found.low, found.high, color=color, alpha=0.13, linewidth=0)
        # Without a limit, the mean and its interval go far beyond.
        axes.set(xlabel="environment steps", ylabel="mean normalised score", xlim=(0, steps[-1]), ylim=(-0.4, 0.9))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)


def compared(file: Path, data: Path = OBJECTIVES) -> None:
    """Draw the mean score of each objective with its 95% interval, beside the KL of its updates."""
    (comparison,) = scores.comparisons(records.read(data))
    # The classes of the paper's objectives, and the names of the others.
    names = [
        ALGORITHM_PATHS.get(each.label, each.label.replace("=", ":")).rpartition(":")[2] for each in comparison.ranking
    ]
    means = np.array([[each.value.low, each.value.value, each.value.high] for each in comparison.ranking])
    kls = np.array([np.percentile(comparison.logged(each.label, "kl"), [10, 50, 90]) for each in comparison.ranking])
    with picture(file, height=5.4, sharey=True) as grid:
        for axes, spans in zip(grid[0], (means, kls), strict=True):
            low, middle, high = spans.T
            axes.errorbar(middle, names, xerr=[middle - low, high - middle], fmt="o", color=CLIP, linewidth=1.6)
        left, right = grid[0]
        left.invert_yaxis()
        left.set(xlabel="mean normalised score", xlim=(0, 1.05))
        right.set(xlabel="KL of an update", xscale="log")


def faster(file: Path, data: Path = SPEEDS) -> None:
    """Draw how many times as fast as SB3's PPO our PPOClip trains, as medians with quartiles of pairs of runs."""
    runs = json.loads(data.read_text())["runs"]
    ratios = [np.divide(runs[name]["seconds"]["PPO"], runs[name]["seconds"]["PPOClip"]) for name in WORKLOADS]
    low, middle, high = np.percentile(ratios, [25, 50, 75], axis=1)
    with picture(file, columns=1, height=3.4) as grid:
        axes = grid[0, 0]
        bars = axes.barh([*WORKLOADS.values()], middle, xerr=[middle - low, high - middle], color=CLIP, height=0.6)
        axes.bar_label(bars, [f"{ratio:.1f}x" for ratio in middle], padding=6)
        axes.axvline(1, color=PLAIN, linewidth=1.5)
        axes.text(1.1, 1, "SB3's PPO", transform=axes.get_xaxis_transform())
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlim=(0, 1.1 * high.max()), xlabel="training speed over that of SB3's PPO with the same settings")
