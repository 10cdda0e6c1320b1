"""Table 1 of the PPO paper (https://arxiv.org/abs/1707.06347), and how our results compare with it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from sb3_ppo_variants.compare.intervals import Estimate
from sb3_ppo_variants.compare.settings import parse
from sb3_ppo_variants.compare.statistics import Differences


@dataclass(frozen=True)
class Row:
    """A setting in the format of the command line, with the paper's name and average normalised score for it."""

    setting: str
    name: str
    score: float

    @property
    def label(self) -> str:
        """The label of the setting."""
        return parse(self.setting).label


NONE = "ppo_unclipped"
BEST = "ppo_clip:clip_range=0.2"
TABLE_1 = (
    Row(NONE, "no clipping or penalty", -0.39),
    Row("ppo_clip:clip_range=0.1", "clipping, ε = 0.1", 0.76),
    Row(BEST, "clipping, ε = 0.2", 0.82),
    Row("ppo_clip:clip_range=0.3", "clipping, ε = 0.3", 0.70),
    Row("ppo_adaptive_kl:desired_kl=0.003", "adaptive KL, d_targ = 0.003", 0.68),
    Row("ppo_adaptive_kl:desired_kl=0.01", "adaptive KL, d_targ = 0.01", 0.74),
    Row("ppo_adaptive_kl:desired_kl=0.03", "adaptive KL, d_targ = 0.03", 0.71),
    Row("ppo_fixed_kl:kl_coef=0.3", "fixed KL, β = 0.3", 0.62),
    Row("ppo_fixed_kl:kl_coef=1", "fixed KL, β = 1", 0.71),
    Row("ppo_fixed_kl:kl_coef=3", "fixed KL, β = 3", 0.72),
    Row("ppo_fixed_kl:kl_coef=10", "fixed KL, β = 10", 0.69),
)
ENVS = [
    "HalfCheetah-v5", "Hopper-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Reacher-v5", "Swimmer-v5",
    "Walker2d-v5",
]  # fmt: skip


def beside(ours: Mapping[str, Estimate], differences: Differences, incomplete: Iterable[str] = ()) -> list[str]:
    """Return the paper's column next to ours, their rank correlation, and how far they agree, as blocks of Markdown.

    :param ours: the average normalised score of each setting, by label
    :param differences: the differences between these settings
    :param incomplete: labels of settings that have runs, but none that count
    """
    here = {**dict.fromkeys(incomplete, "incomplete"), **ours}
    cells = [(row.name, f"{row.score:.2f}", here.get(row.label, "not run")) for row in TABLE_1]
    table = pd.DataFrame(cells, columns=["setting", "paper", "here (95% CI)"])
    blocks = [table.to_markdown(index=False, disable_numparse=True)]
    rows = [row for row in TABLE_1 if row.label in ours]
    if len(rows) < 2:
        return blocks
    tau, _ = kendalltau([row.score for row in rows], [ours[row.label].value for row in rows])
    known = "not defined, because all scores in a column are equal" if math.isnan(tau) else f"{tau:.2f}"
    blocks.append(f"Kendall's tau between the columns, over {len(rows)} settings: {known}.")
    pairs = sum(one.score != other.score for one, other in combinations(rows, 2))
    _, signs = orders(ours, differences)
    return [*blocks, "\n".join(f"- {line}" for line in [*findings(ours, differences), agreement(signs, pairs)])]


def findings(ours: Mapping[str, Estimate], differences: Differences) -> list[str]:
    """Say whether the paper's worst and best settings are also the worst and best of its settings here."""
    lines = []
    named = {row.label: row.name for row in TABLE_1 if row.label in ours}
    worst, best = parse(NONE).label, parse(BEST).label
    if worst in ours:
        against = [
            f"{name} is {'lower' if ours[label].value < ours[worst].value else 'equal'}"
            for label, name in named.items()
            if label != worst and ours[label].value <= ours[worst].value
        ]
        lines.append(f"{named[worst]} is the worst: {'; '.join(['no', *against]) if against else 'yes'}")
        noise = [
            name for label, name in named.items() if label != worst and not differences[worst, label].is_beyond_noise
        ]
        same = f"no, not from {'; '.join(noise)}" if noise else "yes"
        lines.append(f"it differs beyond noise from all others: {same}")
    if best in ours:
        above = [
            f"{name} is better"
            for label, name in named.items()
            if label != best and ours[label].value > ours[best].value and differences[label, best].is_beyond_noise
        ]
        lines.append(f"{named[best]} is not beaten beyond noise: {'; '.join(['no', *above]) if above else 'yes'}")
    return lines


def orders(ours: Mapping[str, Estimate], differences: Differences) -> tuple[list[str], np.ndarray]:
    """Return the settings in both columns, the paper's best first, and whether each pair has the same order here.

    :return: names of the settings, and an array of signs. For settings of which the i-th is above the j-th in the
        paper, ``[i, j]`` is 2 (beyond noise) or 1 (within noise) if it is above here too, and -2 or -1 if the order is
        reversed here. All other elements are 0
    """
    rows = sorted((row for row in TABLE_1 if row.label in ours), key=lambda row: -row.score)
    signs = np.zeros((len(rows), len(rows)), dtype=int)
    for (i, higher), (j, lower) in combinations(enumerate(rows), 2):
        if higher.score > lower.score:
            found = differences[higher.label, lower.label]
            signs[i, j] = int(np.sign(found.estimate.value)) * (2 if found.is_beyond_noise else 1)
    return [row.name for row in rows], signs


def agreement(signs: np.ndarray, pairs: int) -> str:
    """Say how many pairs of settings are in the paper's order.

    :param signs: the array that :func:`orders` returns
    :param pairs: number of pairs that differ in the paper
    """
    same, beyond = int((signs > 0).sum()), int((signs == 2).sum())
    other, other_beyond = int((signs < 0).sum()), int((signs == -2).sum())
    equal = pairs - same - other
    return (
        f"of {pairs} pairs of settings that differ in the paper, {same} are in the same order here, {beyond} of "
        f"them beyond noise, and {other} are reversed, {other_beyond} of them beyond noise"
        f"{f'; {equal} are equal here' if equal else ''}"
    )
