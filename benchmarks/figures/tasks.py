"""Pictures of runs in several environments: figure 3 of the paper, and what Table 1 depends on."""

from pathlib import Path
from textwrap import fill

import numpy as np
import yaml

from benchmarks.figures.look import ADAPTIVE, CLIP, FIXED, PLAIN, picture
from sb3_ppo_variants.compare import records, scores
from sb3_ppo_variants.compare.plots import COLORS, EngFormatter, mean_curve

FIGURE_3 = Path("results/paper-figure3.jsonl.gz")
STUDY = Path("results/table1-study.jsonl.gz")
CONDITIONS = Path("benchmarks/comparisons/table1-study.yml")
# The algorithms by the first word of their labels, with their names, and where the curves of the paper end in each
# environment, as https://github.com/thu-ml/tianshou/tree/master/examples/mujoco reads them off.
ALGORITHMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "ppo_clip": ("PPO (clip)", (1800, 2330, 8000, 1000, -7, 108, 3460)),
    "trpo": ("TRPO", (0, 2100, 200, 1000, -115, 121, 1100)),
    "ppo_unclipped": ("vanilla policy gradient", ()),
    "sb3_a2c": ("A2C", (1000, 900, 7100, 1000, -24, 31, 850)),
}
SETTINGS = {
    "ppo_unclipped": ("none", PLAIN),
    "ppo_clip clip_range=0.2": ("ε = 0.2", CLIP),
    "ppo_adaptive_kl desired_kl=0.01": (r"d_targ = 0.01", ADAPTIVE),
    "ppo_fixed_kl kl_coef=1": ("β = 1", FIXED),
}


def algorithms(file: Path, data: Path = FIGURE_3) -> None:
    """Draw the means and ranges of learning curves, with marks where the paper's end."""
    (comparison,) = scores.comparisons(records.read(data))
    with picture(file, rows=3, columns=3, height=6.2) as grid:
        *panels, rest, unused = grid.ravel()
        for place, (axes, env) in enumerate(zip(panels, comparison.envs, strict=True)):
            for label, color in zip(comparison.labels, COLORS, strict=False):
                name, ends = ALGORITHMS[label.split(" ")[0]]
                curve = mean_curve(comparison, env, label)
                assert curve is not None
                steps, mean, seeds = curve
                axes.plot(steps, mean.value, color=color, linewidth=1.8, label=name)
                axes.fill_between(steps, seeds.min(axis=0), seeds.max(axis=0), color=color, alpha=0.13, linewidth=0)
                if ends:
                    axes.plot(1.06 * steps[-1], ends[place], "<", color=color, clip_on=False)
            axes.axhline(comparison.random_scores[env], color=PLAIN, linewidth=1, label=records.RANDOM)
            axes.set_title(env.removesuffix("-v5"))
            axes.set_xlim(0, 1e6)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.locator_params(axis="x", nbins=3)
        for each in (rest, unused):
            each.axis("off")
        rest.legend(*axes.get_legend_handles_labels(), loc="center left").set_in_layout(False)


def conditions(file: Path, data: Path = STUDY) -> None:
    """Draw the scores of all runs and their means, under each of the conditions."""
    compared = {each.conditions.get("switched") or each.conditions["protocol"]: each
                for each in scores.comparisons(records.read(data))}  # fmt: skip
    given = yaml.safe_load(CONDITIONS.read_text())["conditions"]
    names = [each.get("switched") or each["protocol"] for each in given]
    envs = compared["released-code"].envs
    with picture(file, rows=len(names), columns=len(envs), height=0.8 + 0.75 * len(names)) as grid:
        for row, name in zip(grid, names, strict=True):
            for axes, env in zip(row, envs, strict=True):
                for height, (label, (_, color)) in enumerate(SETTINGS.items()):
                    found, released = ([run["score"] for run in each.runs(label, env)]
                                       for each in (compared[name], compared["released-code"]))  # fmt: skip
                    axes.plot(found, [height] * len(found), "o", color=color, markersize=4, fillstyle="none")
                    axes.plot(np.mean(found), height, "o", color=color, markersize=6)
                    axes.plot([np.mean(released)] * 2, [height - 0.4, height + 0.4], color="0.6", linewidth=1.6)
                axes.axvline(compared[name].random_scores[env], color=PLAIN, linestyle="dashed", linewidth=1)
                axes.sharex(grid[0, envs.index(env)])
                axes.set(ylim=(len(SETTINGS) - 0.4, -0.6), yticks=range(len(SETTINGS)), yticklabels=[])
                axes.tick_params(labelbottom=name == names[-1])
            row[0].set_yticklabels([text for text, _ in SETTINGS.values()])
            row[0].set_ylabel(fill(name, 20), rotation=0, ha="right", va="center", labelpad=4)
        for axes, env in zip(grid[0], envs, strict=True):
            axes.set_title(env.removesuffix("-v5"))
        for axes in grid[-1]:
            axes.set_xlabel("score")
