"""Which settings are better than others beyond noise, as a sentence."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations

from sb3_ppo_variants.compare.intervals import Estimate
from sb3_ppo_variants.compare.markdown import escaped
from sb3_ppo_variants.compare.permutation import ALPHA, samples_for, seeds_needed, smallest
from sb3_ppo_variants.compare.statistics import Differences

NOISE = f"""\
A setting is better than another beyond noise where a permutation test of their means over seeds, stratified by
environment and corrected by Holm's method for all pairs of settings, gives p ≤ {ALPHA}. If all settings were the same,
a report would call any of them better in at most {ALPHA:.0%} of the cases. A rank is the range of places that these
tests allow."""


@dataclass(frozen=True)
class Ranked:
    """A setting, the settings that it is better and worse than beyond noise, and the number of all settings."""

    label: str
    value: Estimate
    seeds: int
    better: list[str]
    worse: list[str]
    settings: int

    @property
    def ranks(self) -> str:
        """The range from the best to the worst rank that the setting may have."""
        best, worst = 1 + len(self.worse), self.settings - len(self.better)
        return str(best) if best == worst else f"{best} to {worst}"

    @property
    def named(self) -> str:
        """The setting in a sentence in Markdown, which says if it has a single seed."""
        return f"{escaped(self.label)}{'' if self.seeds > 1 else ' (a single seed)'}"


def ranked(values: Mapping[str, Estimate], seeds: Mapping[str, int], differences: Differences) -> list[Ranked]:
    """Return the settings in order of their values, the highest first."""
    labels = sorted(values, key=lambda label: -values[label].value)

    def beyond_noise(label: str, sign: int) -> list[str]:
        pairs = {other: differences[label, other] for other in labels if other != label}
        return [n for n, found in pairs.items() if found.is_beyond_noise and sign * found.estimate.value > 0]

    return [
        Ranked(label, values[label], seeds[label], beyond_noise(label, 1), beyond_noise(label, -1), len(labels))
        for label in labels
    ]


def verdict(ranking: list[Ranked], envs: int, incomplete: Collection[str] = ()) -> str:
    """Say in a line what is known about the best setting.

    :param envs: number of environments
    :param incomplete: labels of settings that have runs, but none that count
    """
    best, others = ranking[0], ranking[1:]
    said = f"**{escaped(best.label)}** has the highest mean score, {best.value.value:.2f}"
    if not others:
        none = "no other setting has a seed in every environment" if incomplete else "there is no other setting"
        return f"{said}; {none}."
    if few := too_few([each.seeds for each in ranking], envs):
        return f"{said}. {few}"
    alike = [each.named for each in others if each.label not in best.better]
    if not alike:
        return f"{said}, and is better than all others {'that count ' if incomplete else ''}beyond noise."
    if not best.better:
        why = "It is not better than any other beyond noise: it" if best.seeds > 1 else "With its single seed, it"
        return f"{said}. {why} cannot be told apart from {', '.join(alike)}."
    better = f"It is better beyond noise than {', '.join(map(escaped, best.better))}"
    return f"{said}. {better}, and cannot be told apart from {', '.join(alike)}."


def too_few(seeds: Collection[int], envs: int) -> str:
    """Say that no test can tell settings with so many seeds apart, and how many could. It is empty if a test can.

    :param seeds: the number of seeds of each setting
    """
    tested = [sorted(pair) for pair in combinations(seeds, 2) if min(pair) > 1]
    if not tested:
        return "With a single seed, nothing can be said about noise."
    least = min(smallest(first, second, envs, samples_for(len(tested))) for first, second in tested)
    if least <= ALPHA / len(tested):
        return ""
    enough = seeds_needed(len(tested), envs)
    where = "one environment" if envs == 1 else f"{envs} environments"
    corrected = (
        f", and a comparison of {len(tested)} pairs asks for {ALPHA / len(tested):.2g}" if len(tested) > 1 else ""
    )
    return (
        f"So few seeds cannot tell settings apart: with {_numbers(seeds)} seeds in {where}, the smallest p value of "
        f"two settings is {least:.2g}{corrected}. It takes at least {enough} seeds of each."
    )


def _numbers(seeds: Collection[int]) -> str:
    return str(min(seeds)) if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
