"""Which settings are better than others beyond noise, as a sentence and as a table."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pandas as pd

from sb3_ppo_variants.benchmark.compare.markdown import escaped
from sb3_ppo_variants.benchmark.compare.paper import Estimate

# The first setting's score minus the second's, by both labels.
Differences = Mapping[tuple[str, str], Estimate]
NOISE = """\
A setting is better than another beyond noise where the 95% interval of the difference of their interquartile means,
from independent bootstraps, is above 0. There is no correction for multiple comparisons. A rank is the range of
places that these comparisons allow."""


@dataclass(frozen=True)
class Ranked:
    """A setting, the settings that it is better and worse than beyond noise, and the number of all settings.

    Their labels are escaped for Markdown.
    """

    label: str
    value: Estimate
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
        """The setting in a sentence, which says if it has too few seeds for an interval."""
        return self.label if self.value.is_certain else f"{self.label} (a single seed)"


def ranked(values: Mapping[str, Estimate], differences: Differences) -> list[Ranked]:
    """Return the settings in order of their values, the highest first."""
    labels = sorted(values, key=lambda label: -values[label].value)
    return [
        Ranked(
            escaped(label),
            values[label],
            better=[escaped(other) for other in labels if other != label and differences[label, other].low > 0],
            worse=[escaped(other) for other in labels if other != label and differences[label, other].high < 0],
            settings=len(labels),
        )
        for label in labels
    ]


def verdict(ranking: list[Ranked], incomplete: Collection[str] = ()) -> str:
    """Say in a line what is known about the best setting.

    :param incomplete: labels of settings that have runs, but none that count
    """
    best, others = ranking[0], ranking[1:]
    said = f"**{best.label}** has the highest interquartile mean, {best.value.value:.2f}"
    if not others:
        none = "no other setting has a seed in every environment" if incomplete else "there is no other setting"
        return f"{said}; {none}."
    if not any(each.value.is_certain for each in ranking):
        return f"{said}. With a single seed, nothing can be said about noise."
    alike = [each.named for each in others if each.label not in best.better]
    if not alike:
        return f"{said}, and is better than all others {'that count ' if incomplete else ''}beyond noise."
    if not best.better:
        certain = best.value.is_certain
        why = "It is not better than any other beyond noise: it" if certain else "With its single seed, it"
        return f"{said}. {why} cannot be told apart from {', '.join(alike)}."
    better = f"It is better beyond noise than {', '.join(best.better)}"
    return f"{said}. {better}, and cannot be told apart from {', '.join(alike)}."


def table(ranking: list[Ranked]) -> str:
    """Return a Markdown table with a row for each setting."""
    rows = [(each.label, each.ranks, each.value, len(each.better), len(each.worse)) for each in ranking]
    columns = ["setting", "rank", "IQM", "better than", "worse than"]
    return pd.DataFrame(rows, columns=columns).to_markdown(index=False, disable_numparse=True)
