"""What Table 1 depends on: its headline under each protocol, and with one ingredient of the released code changed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import pandas as pd
from matplotlib import pyplot
from matplotlib.axes import Axes
from scipy.stats import kendalltau

from sb3_ppo_variants.compare.paper import NONE, TABLE_1
from sb3_ppo_variants.compare.plots import COLORS, MEDIUM, SMALL, save
from sb3_ppo_variants.compare.presets import HEADLINE, PRESETS
from sb3_ppo_variants.compare.records import Record, digest
from sb3_ppo_variants.compare.scores import (
    Comparison,
    best_scores,
    matrices,
    normalised,
    random_scores,
    table,
)
from sb3_ppo_variants.compare.settings import parse
from sb3_ppo_variants.compare.statistics import differences

STUDY = "table1-study"
# Short names and scores of the settings in the paper's Table 1.
SHORT = {row.label: "none" if row.setting == NONE else row.name.split(", ")[-1] for row in TABLE_1}
SCORES = {row.label: row.score for row in TABLE_1}
LABELS = [parse(text).label for text in HEADLINE]
WORST = parse(NONE).label
EXPLAINED = """\
The four columns of settings are mean normalised scores: in each environment the random policy has 0 and the best run
under any of the conditions 1. τ is Kendall's tau between these scores and the paper's: 1 for the same order, -1 for the
reverse. The last column has the pairs that differ beyond noise, by permutation tests that are corrected for the six
pairs of a row, but not for the number of rows."""
PICTURED = """\
Score of each run (circles) and mean over seeds (dots); the short lines are the means under `released-code`, the dashed
one is the random policy."""


@dataclass(frozen=True)
class Outcome:
    """The results of the settings under one set of conditions.

    :param conditions: the conditions, in a few words
    :param comparison: the runs under these conditions
    :param scores: mean normalised scores, with a row for each environment in which all settings have a score under all
        of the conditions, and a column for each setting
    :param runs: the normalised scores of all runs, as ``scores.table`` returns them
    """

    conditions: str
    comparison: Comparison
    scores: pd.DataFrame
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
        found = {label: matrix.to_numpy() for label, matrix in matrices(of_settings)[0].items()}
        return ", ".join(
            f"{SHORT[one]} > {SHORT[other]}"
            for (one, other), difference in differences(found).items()
            if difference.is_beyond_noise and difference.estimate.value > 0
        )

    @property
    def said_of_none(self) -> str:
        """Whether the setting without clipping or penalty is the worst, in words."""
        others = self.scores.drop(columns=WORST)
        where = (self.scores[WORST] < others.min(axis="columns")).sum()
        worst = self.scores[WORST].mean() < others.mean().min()
        return f"{'yes' if worst else 'no'}; in {where} of {len(self.scores)} environments"


def outcomes(comparisons: Sequence[Comparison]) -> list[Outcome]:
    """Return the outcome under each of the study's conditions that has runs, in the order of the study.

    All scores are over the same environments, so that they can be compared. Conditions without an environment in which
    all settings have a score do not count in their choice, and have no scores.
    """
    place = {digest(each.description()): number for number, each in enumerate(PRESETS[STUDY].studied)}
    found = [comparison for comparison in comparisons if digest(comparison.conditions) in place and comparison.records]
    found.sort(key=lambda comparison: place[digest(comparison.conditions)])
    runs = _on_a_common_scale(found)
    complete = [_means(frame) for frame in runs]
    envs = [set(scores.index) for scores in complete if len(scores)]
    shared = set.intersection(*envs) if envs else set()
    return [
        Outcome(comparison.circumstances, comparison, scores[scores.index.isin(shared)], frame)
        for comparison, scores, frame in zip(found, complete, runs, strict=True)
    ]


def _on_a_common_scale(found: Sequence[Comparison]) -> list[pd.DataFrame]:
    """Return the scores under each of the conditions, scaled by the best run under any of them."""
    best = pd.DataFrame([best_scores(comparison) for comparison in found]).max().to_dict()
    frames = [table(comparison) for comparison in found]
    return [
        frame.assign(normalised=normalised(frame, random_scores(comparison), best))
        for comparison, frame in zip(found, frames, strict=True)
    ]


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    known = frame.dropna(subset="normalised")
    return known.groupby(["env", "label"])["normalised"].mean().unstack().reindex(columns=LABELS).dropna()


def counted(found: Sequence[Outcome]) -> str:
    """Say how much of the study is done, as a Markdown list."""
    preset = PRESETS[STUDY]
    planned = len(preset.studied) * _planned()
    made = sum(_made(outcome.comparison.records) for outcome in found)
    failed = sum(_made(outcome.comparison.failed) for outcome in found)
    names = [each.switched or each.protocol or "" for each in preset.studied]
    missing = [name for name in names if name not in {outcome.conditions for outcome in found}]
    lines = [f"{made} of {planned} runs are recorded{f', {failed} failed' if failed else ''}"]
    lines += [f"no run yet: {', '.join(missing)}"] if missing else []
    return "\n".join(f"- {line}" for line in lines)


def _planned() -> int:
    """Return the number of runs planned under each of the conditions."""
    preset = PRESETS[STUDY]
    return len(preset.settings["all"]) * len(preset.envs) * preset.seeds


def _made(records: Sequence[Record]) -> int:
    """Return how many of the records are of planned runs. Other options may have added more."""
    # The preset has the same settings under all protocols.
    return len(PRESETS[STUDY].planned(records, None))


def overview(found: Sequence[Outcome]) -> str:
    """Return a Markdown table of the scores, the order and Kendall's tau under each of the conditions."""
    rows = []
    for outcome in found:
        row = {"conditions": outcome.conditions, "runs": f"{_made(outcome.comparison.records)} of {_planned()}"}
        if len(outcome.scores):
            row |= {SHORT[label]: f"{outcome.means[label]:.2f}" for label in LABELS}
            row["from the best"] = ", ".join(SHORT[label] for label in outcome.means.index)
            row |= {"τ": outcome.tau, "none is the worst": outcome.said_of_none, "beyond noise": outcome.apart}
        rows.append(row)
    columns = ["conditions", "runs", *map(SHORT.__getitem__, LABELS), "from the best", "τ"]
    frame = pd.DataFrame(rows, columns=[*columns, "none is the worst", "beyond noise"])
    return frame.fillna("").to_markdown(index=False, disable_numparse=True)


def explained(found: Sequence[Outcome]) -> str:
    """Say what the numbers of :func:`overview` are, and over which environments."""
    envs = sorted({env for outcome in found for env in outcome.scores.index})
    if not envs:
        return "There are no mean scores: in no environment do all four settings have a run under all conditions."
    where = "the environments in which all four settings have a run under all conditions with scores"
    return f"{EXPLAINED}\n\nAll rows are over {', '.join(envs)}: {where}."


def draw(found: Sequence[Outcome], file: Path) -> None:
    """Draw the scores, with a row for each of the conditions and a column for each environment."""
    envs = sorted({env for outcome in found for env in outcome.comparison.envs})
    figure, grid = pyplot.subplots(
        len(found), len(envs), figsize=(2.4 * len(envs) + 2.6, 1.0 * len(found) + 0.6), layout="constrained",
        squeeze=False, sharex="col", sharey=True,
    )  # fmt: skip
    base = next((outcome.comparison for outcome in found if outcome.conditions == "released-code"), None)
    for outcome, row in zip(found, grid, strict=True):
        for axes, env in zip(row, envs, strict=True):
            _panel(axes, outcome.comparison, base, env)
        row[0].set_ylabel(fill(outcome.conditions, 19), rotation=0, ha="right", va="center", fontsize=SMALL)
        row[0].yaxis.set_label_coords(-0.5, 0.5)
        if len(outcome.scores):
            row[-1].annotate(f"τ = {outcome.tau}", (1.04, 0.5), xycoords="axes fraction", va="center", fontsize=SMALL)
    for axes, env in zip(grid[0], envs, strict=True):
        axes.set_title(env, fontsize=MEDIUM)
    for axes in grid[-1]:
        axes.set_xlabel("score", fontsize=SMALL)
    save(figure, file)


def _panel(axes: Axes, comparison: Comparison, base: Comparison | None, env: str) -> None:
    """Draw the scores in one environment under one set of conditions, with a row for each setting."""
    for place, (label, color) in enumerate(zip(LABELS, COLORS, strict=False)):
        values = _of(comparison, env, label)
        axes.plot(values, [place] * len(values), "o", color=color, markersize=5, fillstyle="none", alpha=0.7)
        if values:
            axes.plot(sum(values) / len(values), place, "o", color=color, markersize=6)
        if base is not None and (reference := _of(base, env, label)):
            mean = sum(reference) / len(reference)
            axes.plot([mean, mean], [place - 0.4, place + 0.4], color="0.6", linewidth=1.5, zorder=1)
    if env in (random := random_scores(comparison)):
        axes.axvline(random[env], color="0.7", linewidth=1, linestyle="dashed", zorder=0)
    if env not in comparison.envs:
        axes.annotate("no run yet", (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", fontsize=SMALL)
    axes.set_yticks(range(len(LABELS)), [SHORT[label] for label in LABELS], fontsize=SMALL)
    axes.set_ylim(len(LABELS) - 0.4, -0.6)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.grid(axis="x", alpha=0.3)


def _of(comparison: Comparison, env: str, label: str) -> list[float]:
    of_setting = [record for record in comparison.records if (record["env"], record["label"]) == (env, label)]
    return [record["score"] for record in of_setting if record["score"] is not None]
