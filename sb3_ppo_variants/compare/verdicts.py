"""Which settings are better than others beyond noise, and how far that agrees with the paper's Table 1, in words."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from sb3_ppo_variants.compare.plan import BEST, NONE, TABLE_1
from sb3_ppo_variants.compare.settings import parse
from sb3_ppo_variants.compare.statistics import (
    ALPHA,
    Differences,
    Estimate,
    Ranked,
    samples_for,
    seeds_needed,
    smallest_p,
)
from sb3_ppo_variants.compare.tables import escape

NOISE = f"""\
A setting is better than another beyond noise where a permutation test of their means over seeds, stratified by
environment and corrected by Holm's method for all pairs of settings, gives p ≤ {ALPHA}. If all settings were the same,
a report would call any of them better in at most {ALPHA:.0%} of the cases. A rank is the range of places that these
tests allow."""


def verdict(ranking: Sequence[Ranked], envs: int, incomplete: Collection[str] = ()) -> str:
    """Say in a line what is known about the best setting.

    :param incomplete: labels of settings that have runs, but none that count
    """
    best, others = ranking[0], ranking[1:]
    said = f"**{escape(best.label)}** has the highest mean score, {best.value.value:.2f}"
    if not others:
        none = "no other setting has a seed in every environment" if incomplete else "there is no other setting"
        return f"{said}; {none}."
    if few := too_few([each.seeds for each in ranking], envs):
        return f"{said}. {few}"
    alike = [
        f"{escape(each.label)}{'' if each.seeds > 1 else ' (a single seed)'}"
        for each in others
        if each.label not in best.better
    ]
    if not alike:
        return f"{said}, and is better than all others {'that count ' if incomplete else ''}beyond noise."
    if not best.better:
        why = "It is not better than any other beyond noise: it" if best.seeds > 1 else "With its single seed, it"
        return f"{said}. {why} cannot be told apart from {', '.join(alike)}."
    better = f"It is better beyond noise than {', '.join(map(escape, best.better))}"
    return f"{said}. {better}, and cannot be told apart from {', '.join(alike)}."


def too_few(seeds: Collection[int], envs: int) -> str:
    """Say that no test can tell settings with these numbers of seeds apart, and how many could; nothing if one can."""
    tested = [sorted(pair) for pair in combinations(seeds, 2) if min(pair) > 1]
    if not tested:
        return "With a single seed, nothing can be said about noise."
    least = min(smallest_p(first, second, envs, samples_for(len(tested))) for first, second in tested)
    needed = ALPHA / len(tested)
    if least <= needed:
        return ""
    where = "one environment" if envs == 1 else f"{envs} environments"
    numbers = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    corrected = f", and a comparison of {len(tested)} pairs asks for {needed:.2g}" if len(tested) > 1 else ""
    return (
        f"So few seeds cannot tell settings apart: with {numbers} seeds in {where}, the smallest p value of "
        f"two settings is {least:.2g}{corrected}. It takes at least {seeds_needed(len(tested), envs)} seeds of each."
    )


def compare_with_paper(
    ours: Mapping[str, Estimate], differences: Differences, incomplete: Iterable[str] = ()
) -> list[str]:
    """Return the paper's column next to ours, their rank correlation, and how far they agree, as blocks of Markdown.

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
    signs = orders(ours, differences)[1]
    pairs = sum(one.score != other.score for one, other in combinations(rows, 2))
    same, reverse = int((signs > 0).sum()), int((signs < 0).sum())
    equal = pairs - same - reverse
    agreement = (
        f"of {pairs} pairs of settings that differ in the paper, {same} are in the same order here, "
        f"{(signs == 2).sum()} of them beyond noise, and {reverse} are reversed, {(signs == -2).sum()} of them beyond "
        f"noise{f'; {equal} are equal here' if equal else ''}"
    )
    return [*blocks, "\n".join(f"- {line}" for line in [*findings(ours, differences), agreement])]


def findings(ours: Mapping[str, Estimate], differences: Differences) -> list[str]:
    """Say whether the paper's worst and best settings are also the worst and best of its settings here."""
    lines = []
    named = {row.label: row.name for row in TABLE_1 if row.label in ours}
    worst, best = parse(NONE).label, parse(BEST).label
    if worst in ours:
        others = {label: name for label, name in named.items() if label != worst}
        against = [
            f"{name} is {'lower' if ours[label].value < ours[worst].value else 'equal'}"
            for label, name in others.items()
            if ours[label].value <= ours[worst].value
        ]
        noise = [name for label, name in others.items() if not differences[worst, label].is_beyond_noise]
        lines.append(f"{named[worst]} is the worst: {'; '.join(['no', *against]) if against else 'yes'}")
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
