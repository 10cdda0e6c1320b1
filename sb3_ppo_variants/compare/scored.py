"""The parts of a report about normalised scores: the verdict with its table, comparisons with others, and pictures."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from sb3_ppo_variants.compare import curve_plots, paper, plots, ranking, scores, statistics, tables
from sb3_ppo_variants.compare.markdown import escaped
from sb3_ppo_variants.compare.scores import Comparison
from sb3_ppo_variants.compare.statistics import MARGIN, Differences

PICTURES = "pictures"
PAPER = "paper-table1"
OVERVIEW = """\
Settings are in order of their mean normalised score. `better than` and `worse than` count the settings from which one
differs beyond noise. The KL is KL(old || new) after an update: its median over updates, and the range of the middle
80%. SB3 logs an estimate of it."""
NORMALISED = """\
Scores are shifted and scaled in each environment so that the random policy (measured) has 0 and the best run of this
comparison 1. Only seeds with a run in every environment count. Intervals are 95% t intervals over seeds, widened for
skewed scores; each is about one number, without a correction for how many there are. With fewer than four seeds in one
environment, or three in two, there are none."""
OWN_PROTOCOL = """\
Settings with a protocol of their own do not set this scale, so that their scores may be above 1."""
AGAINST = f"""\
the probability that a run is better, the difference of the means (above 0: better), the p value of that difference,
corrected as above, and whether the two are equivalent: two one-sided t tests at 5% show that the means differ by less
than {MARGIN}. Where settings neither differ nor are equivalent, these runs cannot tell."""
AGGREGATES = """\
Lines are means, circles seeds (means over environments), and bars 95% intervals."""
EFFICIENCY = """\
The mean of the normalised curves over all environments, by steps and by time."""
ORDERS = """\
Each square compares two settings that differ in the paper."""


@dataclass(frozen=True)
class Scored:
    """A comparison with its scores, and with what they say about its settings.

    :param frame: the scores, as ``scores.table`` returns them
    :param arrays: the normalised scores that count, shape ``(seeds, environments)``, by setting
    :param incomplete: labels of settings that have runs, but none that count
    """

    comparison: Comparison
    frame: pd.DataFrame
    arrays: dict[str, np.ndarray]
    incomplete: list[str]
    differences: Differences

    @classmethod
    def of(cls, comparison: Comparison, frame: pd.DataFrame) -> "Scored":
        """Compare the settings."""
        found, incomplete = scores.matrices(frame)
        arrays = {label: matrix.to_numpy() for label, matrix in found.items()}
        return cls(comparison, frame, arrays, incomplete, statistics.differences(arrays))

    def overview(self) -> list[str]:
        """Return what a reader should see first: the verdict, and a table with scores, speed and KL."""
        if not self.arrays:
            return [tables.overview(self.comparison, self.frame, [], {}), OVERVIEW]
        seeds = {label: len(array) for label, array in self.arrays.items()}
        envs = next(iter(self.arrays.values())).shape[1]
        order = ranking.ranked(statistics.means(self.arrays), seeds, self.differences)
        iqm = statistics.interquartile_means(self.arrays) if envs >= statistics.FEWEST_FOR_IQM else {}
        said = ranking.verdict(order, envs, self.incomplete)
        return [said, tables.overview(self.comparison, self.frame, order, iqm), OVERVIEW, ranking.NOISE]

    def section(self, pictures: Path, baseline: str | None) -> list[str]:
        """Return the section on normalised scores, and draw its pictures into a folder."""
        others = [] if self.comparison.scaling == self.comparison.labels else [OWN_PROTOCOL]
        blocks = ["### Normalised scores", NORMALISED, *others]
        left_out = scores.unscaled(self.frame)
        if left_out:
            envs = ", ".join(left_out)
            blocks.append(f"Without {envs}, where no run beats the random policy, or the random policy has no score.")
        if left_out == self.comparison.envs:
            return blocks
        blocks += without(self.incomplete)
        if not self.arrays:
            return blocks
        blocks += self._against(baseline or self.comparison.baseline)
        if baseline is not None and baseline not in self.arrays:
            blocks.append(f"Without {escaped(baseline)} here, nothing is compared with it.")
        return [*blocks, *self._paper(pictures), *self._pictures(pictures)]

    def _against(self, baseline: str) -> list[str]:
        """Return a table that compares the other settings with one, which is empty if this has no scores."""
        if baseline not in self.arrays or len(self.arrays) == 1:
            return []
        other = self.arrays[baseline]
        rows = {
            label: {
                "seeds": len(own),
                "P(better)": statistics.probability_of_improvement(own, other),
                "difference": self.differences[label, baseline].estimate,
                "p": tables.p_value(self.differences[label, baseline].p),
                f"equivalent within {MARGIN}": "yes" if statistics.are_equivalent(own, other) else "not shown",
            }
            for label, own in self.arrays.items()
            if label != baseline
        }
        of = tables.count(range(len(other)), "seed")
        return [f"Against {escaped(baseline)} ({of}): {AGAINST}", tables.against(rows)]

    def _paper(self, pictures: Path) -> list[str]:
        """Return the comparison with the paper, which is empty if this is not its Table 1."""
        in_paper = any(row.label in self.comparison.labels for row in paper.TABLE_1)
        if self.comparison.applied["preset"] != PAPER or not in_paper:
            return []
        means = statistics.means(self.arrays)
        names, signs = paper.orders(means, self.differences)
        beside = paper.beside(means, self.differences, self.incomplete)
        blocks = ["#### Comparison with the paper's Table 1", *beside]
        if signs.any():
            file = file_of(self.comparison, "orders", pictures)
            plots.orders(names, signs, file)
            blocks += [ORDERS, image("Which pairs are in the paper's order", file)]
        return blocks

    def _pictures(self, pictures: Path) -> list[str]:
        labels = self.comparison.labels
        bars, profiles = (file_of(self.comparison, name, pictures) for name in ("aggregates", "profiles"))
        plots.aggregates(statistics.means(self.arrays), self.arrays, labels, bars)
        plots.performance_profiles(statistics.profiles(self.arrays), statistics.taus(self.arrays), labels, profiles)
        blocks = [image("Mean normalised scores", bars), AGGREGATES, image("Performance profiles", profiles)]
        shares, curves = scores.normalised_curves(self.comparison, self.frame)
        if not len(shares):
            return blocks
        file = file_of(self.comparison, "efficiency", pictures)
        bands = {label: statistics.band(of_label) for label, of_label in curves.items()}
        curve_plots.efficiency(self.comparison, shares, bands, file)
        return [*blocks, "#### Sample efficiency", EFFICIENCY, image("Sample efficiency", file)]


def without(incomplete: Iterable[str]) -> list[str]:
    """Return a line about the settings without a seed in every environment, if there are any."""
    return [f"Without such a seed: {', '.join(map(escaped, incomplete))}."] if incomplete else []


def file_of(comparison: Comparison, name: str, pictures: Path) -> Path:
    """Return the file of a picture."""
    return pictures / f"{comparison.name}-{name}.png"


def image(text: str, file: Path) -> str:
    """Return a picture in Markdown, with links to its other formats."""
    others = ", ".join(f"[{s[1:].upper()}]({PICTURES}/{file.with_suffix(s).name})" for s in plots.VECTOR)
    return f"![{text}]({PICTURES}/{file.name})\n\n{others}"
