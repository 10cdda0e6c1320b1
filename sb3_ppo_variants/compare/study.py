"""What Table 1 depends on: its headline under each protocol, and with one ingredient of the released code changed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import kendalltau

from sb3_ppo_variants.compare import scores, tables
from sb3_ppo_variants.compare.paper import NONE, TABLE_1
from sb3_ppo_variants.compare.plan import HEADLINE, PRESETS
from sb3_ppo_variants.compare.plots import COLORS, SMALL_TEXT, drawing, label_grid
from sb3_ppo_variants.compare.records import digest
from sb3_ppo_variants.compare.scores import Comparison
from sb3_ppo_variants.compare.settings import read_setting
from sb3_ppo_variants.compare.statistics import differences

STUDY = "table1-study"
PRESET = PRESETS[STUDY]
# Short names and scores of the settings in the paper's Table 1.
SHORT = {row.label: "none" if row.setting == NONE else row.name.split(", ")[-1] for row in TABLE_1}
SCORES = {row.label: row.score for row in TABLE_1}
LABELS = [read_setting(text).label for text in HEADLINE]
# The number of runs planned under each of the conditions.
PLANNED = len(HEADLINE) * len(PRESET.envs) * PRESET.seeds
WORST = read_setting(NONE).label
EXPLAINED = """\
The four columns of settings are mean normalised scores: in each environment the random policy has 0 and the best run
under any of the conditions 1. τ is Kendall's tau between these scores and the paper's: 1 for the same order, -1 for the
reverse. The last column has the pairs that differ beyond noise, by permutation tests that are corrected for the six
pairs of a row, but not for the number of rows."""
PICTURED = """\
Score of each run (circles) and mean over seeds (dots); the short lines are the means under `released-code`, the dashed
one is the random policy."""


@dataclass(frozen=True)
class ConditionsResult:
    """The results of the settings under one set of conditions."""

    conditions: str
    comparison: Comparison
    # Mean normalised scores by setting, in the environments where all settings have one under all of the conditions.
    scores: pd.DataFrame
    # The normalised scores of all runs, as in ``Comparison.table``.
    runs: pd.DataFrame

    @property
    def means(self) -> pd.Series:
        """The mean score of each setting over environments, the best first."""
        return self.scores.mean().sort_values(ascending=False)

    @property
    def tau(self) -> str:
        """Kendall's tau between the means and the paper's scores."""
        tau, _ = kendalltau([SCORES[label] for label in LABELS], self.means[LABELS])
        return "undefined" if math.isnan(tau) else f"{tau:.2f}"

    @property
    def apart(self) -> str:
        """The pairs of settings that differ beyond noise, the better one first."""
        of_settings = self.runs[self.runs["label"].isin(LABELS) & self.runs["env"].isin(self.scores.index)]
        found = differences(scores.arrays(of_settings))
        return ", ".join(
            f"{SHORT[one]} > {SHORT[other]}"
            for (one, other), difference in scores.without_doubtful(found, self.comparison.doubts).items()
            if difference.is_beyond_noise and difference.estimate.value > 0
        )

    @property
    def said_of_none(self) -> str:
        """Whether the setting without clipping or penalty is the worst, in words."""
        others = self.scores.drop(columns=WORST)
        where = (self.scores[WORST] < others.min(axis="columns")).sum()
        worst = self.scores[WORST].mean() < others.mean().min()
        return f"{'yes' if worst else 'no'}; in {where} of {len(self.scores)} environments"


def outcomes(comparisons: Sequence[Comparison]) -> list[ConditionsResult]:
    """Find the outcome under each of the study's conditions that has runs, in the order of the study.

    All scores have the same scale, with 1 for the best run under any of the conditions, and are over the same
    environments. Conditions without an environment in which all settings have a score do not count in their choice. Of
    runs of several lengths, those of the study's own length count, or else those of the first.
    """
    by_conditions = {digest(each.conditions): each for each in comparisons if each.records}
    lengths = [PRESET.studied[0].timesteps, *(each.conditions["timesteps"] for each in by_conditions.values())]
    for timesteps in dict.fromkeys(lengths):
        studied = [digest(replace(each, timesteps=timesteps).description()) for each in PRESET.studied]
        if found := [by_conditions[each] for each in studied if each in by_conditions]:
            break
    best = pd.DataFrame(each.best_scores for each in found).max().to_dict()
    runs = [each.table.assign(normalised=scores.normalise(each.table, each.random_scores, best)) for each in found]
    means = [frame.pivot_table("normalised", "env", "label").reindex(columns=LABELS).dropna() for frame in runs]
    envs = [set(of_settings.index) for of_settings in means if len(of_settings)]
    shared = set.intersection(*envs) if envs else set()
    return [
        ConditionsResult(comparison.circumstances, comparison, of_settings[of_settings.index.isin(shared)], frame)
        for comparison, of_settings, frame in zip(found, means, runs, strict=True)
    ]


def progress(found: Sequence[ConditionsResult]) -> str:
    """Say how much of the study is done, as a Markdown list."""
    made = sum(len(PRESET.planned(outcome.comparison.records, None)) for outcome in found)
    failed = sum(len(PRESET.planned(outcome.comparison.failed, None)) for outcome in found)
    names = [each.switched or each.protocol or "" for each in PRESET.studied]
    missing = [name for name in names if name not in {outcome.conditions for outcome in found}]
    lines = [f"{made} of {len(PRESET.studied) * PLANNED} runs are recorded{f', {failed} failed' if failed else ''}"]
    lines += [f"no run yet: {', '.join(missing)}"] if missing else []
    return "\n".join(f"- {line}" for line in lines)


def tabulate(found: Sequence[ConditionsResult]) -> list[str]:
    """Make a table of the scores, the order and Kendall's tau under each of the conditions, and say what they are."""
    rows = []
    for outcome in found:
        made = len(PRESET.planned(outcome.comparison.records, None))
        row = {"conditions": outcome.conditions, "runs": f"{made} of {PLANNED}"}
        if len(outcome.scores):
            row |= {SHORT[label]: f"{outcome.means[label]:.2f}" for label in LABELS}
            row["from the best"] = ", ".join(SHORT[label] for label in outcome.means.index)
            row |= {"τ": outcome.tau, "none is the worst": outcome.said_of_none, "beyond noise": outcome.apart}
        rows.append(row)
    columns = ["conditions", "runs", *(SHORT[label] for label in LABELS), "from the best", "τ"]
    frame = pd.DataFrame(rows, columns=[*columns, "none is the worst", "beyond noise"])
    explained = "There are no mean scores: in no environment do all four settings have a run under all conditions."
    if envs := sorted({env for outcome in found for env in outcome.scores.index}):
        where = "the environments in which all four settings have a run under all conditions with scores"
        explained = f"{EXPLAINED}\n\nAll rows are over {', '.join(envs)}: {where}."
    return [tables.markdown(frame, None), explained]


def draw_study(found: Sequence[ConditionsResult], file: Path) -> None:
    """Draw the scores, with a row for each of the conditions and a column for each environment."""
    envs = sorted({env for outcome in found for env in outcome.comparison.envs})
    base = next((outcome.comparison for outcome in found if outcome.conditions == "released-code"), None)
    with drawing(file, len(found), len(envs), (2.4 * len(envs) + 2.6, len(found) + 0.6), sharey=True) as grid:
        label_grid(grid, envs, "score")
        for outcome, row in zip(found, grid, strict=True):
            for axes, env in zip(row, envs, strict=True):
                _draw_panel(axes, outcome.comparison, base, env)
            row[0].set_ylabel(fill(outcome.conditions, 19), rotation=0, ha="right", va="center", fontsize=SMALL_TEXT)
            row[0].yaxis.set_label_coords(-0.5, 0.5)
            if len(outcome.scores):
                said = f"τ = {outcome.tau}"
                row[-1].annotate(said, (1.04, 0.5), xycoords="axes fraction", va="center", fontsize=SMALL_TEXT)


def _draw_panel(axes: Axes, comparison: Comparison, base: Comparison | None, env: str) -> None:
    """Draw the scores in one environment under one set of conditions, with a row for each setting."""
    for place, (label, color) in enumerate(zip(LABELS, COLORS, strict=False)):
        values = _scores(comparison, env, label)
        axes.plot(values, [place] * len(values), "o", color=color, markersize=5, fillstyle="none", alpha=0.7)
        if values:
            axes.plot(np.mean(values), place, "o", color=color, markersize=6)
        if base is not None and (reference := _scores(base, env, label)):
            axes.plot([np.mean(reference)] * 2, [place - 0.4, place + 0.4], color="0.6", linewidth=1.5, zorder=1)
    if env in (random := comparison.random_scores):
        axes.axvline(random[env], color="0.7", linewidth=1, linestyle="dashed", zorder=0)
    if env not in comparison.envs:
        axes.annotate("no run yet", (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", fontsize=SMALL_TEXT)
    axes.set_yticks(range(len(LABELS)), [SHORT[label] for label in LABELS], fontsize=SMALL_TEXT)
    axes.set_ylim(len(LABELS) - 0.4, -0.6)
    axes.tick_params(axis="x", labelsize=SMALL_TEXT)
    axes.grid(axis="x", alpha=0.3)


def _scores(comparison: Comparison, env: str, label: str) -> list[float]:
    return [record["score"] for record in comparison.runs(label, env) if record["score"] is not None]
