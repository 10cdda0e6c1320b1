"""How far a comparison agrees with the paper: with the order in Table 1, and with the ends of Figure 3's curves."""

import math
from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from sb3_ppo_variants.compare.paper import BEST, FIGURE_3, NONE, TABLE_1
from sb3_ppo_variants.compare.scores import Comparison
from sb3_ppo_variants.compare.settings import read_setting
from sb3_ppo_variants.compare.statistics import Differences, Estimate
from sb3_ppo_variants.compare.tables import format_number, markdown

ENDS_OF_CURVES = """\
The mean score, and in brackets the return at which the paper's curve ends, which the authors of
[Tianshou](https://github.com/thu-ml/tianshou/tree/master/examples/mujoco) read off the figure."""


def compare_with_paper(
    ours: Mapping[str, Estimate], differences: Differences, incomplete: Iterable[str] = ()
) -> list[str]:
    """Show the paper's column next to ours, their rank correlation, and how far they agree, as blocks of Markdown."""
    here = {**dict.fromkeys(incomplete, "incomplete"), **ours}
    cells = [(row.name, f"{row.score:.2f}", here.get(row.label, "not run")) for row in TABLE_1]
    blocks = [markdown(pd.DataFrame(cells, columns=["setting", "paper", "here (95% CI)"]), None)]
    rows = [row for row in TABLE_1 if row.label in ours]
    if len(rows) < 2:
        return blocks
    tau, _ = kendalltau([row.score for row in rows], [ours[row.label].value for row in rows])
    known = "not defined, because all scores in a column are equal" if math.isnan(tau) else f"{tau:.2f}"
    blocks.append(f"Kendall's tau between the columns, over {len(rows)} settings: {known}.")
    signs = find_orders(ours, differences)[1]
    pairs = sum(one.score != other.score for one, other in combinations(rows, 2))
    same, reverse = (signs > 0).sum(), (signs < 0).sum()
    equal = pairs - same - reverse
    agreement = (
        f"of {pairs} pairs of settings that differ in the paper, {same} are in the same order here, "
        f"{(signs == 2).sum()} of them beyond noise, and {reverse} are reversed, {(signs == -2).sum()} of them beyond "
        f"noise{f'; {equal} are equal here' if equal else ''}"
    )
    return [*blocks, "\n".join(f"- {line}" for line in [*compare_extremes(ours, differences), agreement])]


def compare_extremes(ours: Mapping[str, Estimate], differences: Differences) -> list[str]:
    """Say whether the paper's worst and best settings are also the worst and best of its settings here."""
    lines = []
    named = {row.label: row.name for row in TABLE_1 if row.label in ours}
    worst, best = read_setting(NONE).label, read_setting(BEST).label
    if worst in ours:
        others = {label: name for label, name in named.items() if label != worst}
        above = {name: ours[label].value - ours[worst].value for label, name in others.items()}
        against = [f"{name} is {'lower' if by < 0 else 'equal'}" for name, by in above.items() if by <= 0]
        noise = [name for label, name in others.items() if not differences[worst, label].is_beyond_noise]
        lines.append(f"{named[worst]} is the worst: {'; '.join(['no', *against]) if against else 'yes'}")
        same = f"no, not from {'; '.join(noise)}" if noise else "yes"
        lines.append(f"it differs beyond noise from all others: {same}")
    if best in ours:
        higher = [label for label in named if ours[label].value > ours[best].value]
        beaten = [f"{named[n]} is better" for n in higher if differences[n, best].is_beyond_noise]
        lines.append(f"{named[best]} is not beaten beyond noise: {'; '.join(['no', *beaten]) if beaten else 'yes'}")
    return lines


def find_orders(ours: Mapping[str, Estimate], differences: Differences) -> tuple[list[str], np.ndarray]:
    """Find the settings in both columns, the paper's best first, and whether each pair has the same order here.

    :return: names of the settings, and an array of signs. If the i-th is above the j-th in the paper, ``[i, j]`` is 2
        (beyond noise) or 1 (within noise) if it is above here too, and -2 or -1 if it is below. All others are 0
    """
    rows = sorted((row for row in TABLE_1 if row.label in ours), key=lambda row: -row.score)
    signs = np.zeros((len(rows), len(rows)), dtype=int)
    for (i, higher), (j, lower) in combinations(enumerate(rows), 2):
        if higher.score > lower.score:
            found = differences[higher.label, lower.label]
            signs[i, j] = int(np.sign(found.estimate.value)) * (2 if found.is_beyond_noise else 1)
    return [row.name for row in rows], signs


def compare_with_figure(comparison: Comparison) -> list[str]:
    """Show the mean scores of the methods of Figure 3 next to the ends of the paper's curves, and how far they agree.

    It is empty if none of the methods has a score.
    """
    means = comparison.table.groupby(["env", "label"])["score"].mean().dropna()
    methods = [method for method in FIGURE_3 if method.label in means.index.get_level_values("label")]
    if not methods:
        return []
    cells: dict[str, dict[str, str]] = {env: {} for env in comparison.envs}
    same, pairs = 0, 0
    for env, of_env in cells.items():
        for method in methods:
            read = f"{method.returns[env]:g}" if env in method.returns else "not read"
            here = means.get((env, method.label))
            of_env[method.name] = f"{'not run' if here is None else format_number(here)} ({read})"
        known = [(m.returns[env], means[env, m.label]) for m in methods if env in m.returns and (env, m.label) in means]
        differing = [(one, other) for one, other in combinations(known, 2) if one[0] != other[0]]
        pairs += len(differing)
        same += sum((one[0] - other[0]) * (one[1] - other[1]) > 0 for one, other in differing)
    table = markdown(pd.DataFrame.from_dict(cells, orient="index"), "environment")
    agreement = f"Of {pairs} pairs of methods that differ there in an environment, {same} are in the same order here."
    return [ENDS_OF_CURVES, table, agreement]
