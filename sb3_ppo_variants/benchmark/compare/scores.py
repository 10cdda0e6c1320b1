"""Tables of scores, from records."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sb3_ppo_variants.benchmark.compare.paper import TABLE_1
from sb3_ppo_variants.benchmark.compare.plan import RANDOM
from sb3_ppo_variants.benchmark.compare.records import Record
from sb3_ppo_variants.benchmark.compare.settings import ALGORITHMS
from sb3_ppo_variants.benchmark.compare.values import digest


@dataclass(frozen=True)
class Comparison:
    """Records of runs under the same conditions.

    :param conditions: the conditions
    :param records: records of finished trainings, with a ``label`` for each setting
    :param random: records of the random policy
    :param failed: records of failed runs
    """

    conditions: dict[str, Any]
    records: list[Record]
    random: list[Record]
    failed: list[Record]

    @property
    def name(self) -> str:
        """A short name for files."""
        return digest(self.conditions)[:6]

    @property
    def labels(self) -> list[str]:
        """The settings: the paper's in its order, and then the others."""
        return sorted({record["label"] for record in self.records}, key=order)

    @property
    def envs(self) -> list[str]:
        """The environments."""
        return sorted({record["env"] for record in self.records})


def order(label: str) -> tuple[int, int, str]:
    """Where a setting stands in tables."""
    in_paper = [row.label for row in TABLE_1]
    known = list(ALGORITHMS)
    name = label.split(" ")[0]
    return (
        in_paper.index(label) if label in in_paper else len(in_paper),
        known.index(name) if name in known else len(known),
        label,
    )


def comparisons(records: Iterable[Record]) -> list[Comparison]:
    """The records, those under the same conditions together."""
    found: dict[str, Comparison] = {}
    for record in records:
        part = found.setdefault(digest(record["conditions"]), Comparison(record["conditions"], [], [], []))
        kind = (
            part.failed if record["status"] == "failed" else part.random if record["label"] == RANDOM else part.records
        )
        kind.append(record)
    return [
        Comparison(part.conditions, _told_apart(part.records), part.random, part.failed)
        for part in sorted(found.values(), key=_order_of_sections)
    ]


def _order_of_sections(comparison: Comparison) -> tuple[str, list[str], str]:
    return comparison.conditions["preset"] or "", comparison.envs, comparison.name


def _told_apart(records: list[Record]) -> list[Record]:
    """With other labels where one label stands for different hyperparameters, as when their defaults changed."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for record in records:
        same = kinds.setdefault((record["label"], record["env"]), [])
        kind = _kind(record)
        same.extend([] if kind in same else [kind])
    return [
        {**record, "label": f"{record['label']} #{_kind(record)}"}
        if len(kinds[record["label"], record["env"]]) > 1
        else record
        for record in records
    ]


def _kind(record: Record) -> str:
    return digest([record["hyperparameters"], record["timesteps"]])[:6]


def table(comparison: Comparison) -> pd.DataFrame:
    """A row for each finished training.

    :return: ``label``, ``env``, ``seed``, ``timesteps``, ``score`` (NaN if no episode ended), ``normalised`` (NaN if
        not known), ``episodes`` (that the score is the mean of), ``steps``, ``wall_seconds``, ``cpu_seconds`` and
        ``steps_per_second``
    """
    columns = ["label", "env", "seed", "timesteps", "score", "steps", "wall_seconds", "cpu_seconds"]
    frame = pd.DataFrame(comparison.records, columns=columns)
    frame["score"] = frame["score"].astype(float)
    frame["episodes"] = [len(record["last_returns"]) for record in comparison.records]
    frame["steps_per_second"] = frame["steps"] / frame["wall_seconds"]
    frame["normalised"] = normalised(frame, random_scores(comparison))
    frame["order"] = frame["label"].map(order)
    return frame.sort_values(["order", "env", "seed"], ignore_index=True).drop(columns="order")


def random_scores(comparison: Comparison) -> dict[str, float]:
    """The score of the random policy in each environment where it was measured."""
    return {record["env"]: record["score"] for record in comparison.random if record["score"] is not None}


def normalised(frame: pd.DataFrame, random: dict[str, float]) -> pd.Series:
    """Scores shifted and scaled in each environment so that the random policy has 0 and the best run 1.

    NaN where the random policy was not measured, or where no run is better than it.

    :param frame: ``env`` and ``score`` of each run
    :param random: the score of the random policy by environment
    """
    low = frame["env"].map(random).astype(float)
    span = frame.groupby("env")["score"].transform("max") - low
    return (frame["score"] - low) / span.where(span > 0)


def unscaled(frame: pd.DataFrame) -> list[str]:
    """The environments without normalised scores."""
    return sorted(set(frame["env"]) - set(frame["env"][frame["normalised"].notna()]))


def matrices(frame: pd.DataFrame) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The normalised scores of each setting, shape ``(seeds, environments)``, and the settings that have none.

    Only seeds with a run in every environment that has normalised scores count.
    """
    envs = sorted(set(frame["env"]) - set(unscaled(frame)))
    found, incomplete = {}, []
    for label, rows in frame.groupby("label", sort=False):
        matrix = rows.pivot(index="seed", columns="env", values="normalised").reindex(columns=envs).dropna()
        if matrix.empty:
            incomplete.append(label)
        else:
            found[label] = matrix
    return found, incomplete
