"""Tables of scores, made from records."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from sb3_ppo_variants.compare.curves import SPANS
from sb3_ppo_variants.compare.options import ALGORITHMS, BASELINE
from sb3_ppo_variants.compare.paper import TABLE_1
from sb3_ppo_variants.compare.plan import RANDOM
from sb3_ppo_variants.compare.records import ADDED, Record, curve, digest
from sb3_ppo_variants.compare.settings import own_protocol


@dataclass(frozen=True)
class Comparison:
    """Runs under the same conditions: finished training runs, runs of the random policy, and failed runs."""

    conditions: dict[str, Any]
    records: list[Record]
    random: list[Record]
    failed: list[Record]

    @property
    def name(self) -> str:
        """A short name for files."""
        return digest(self.conditions)[:6]

    @property
    def title(self) -> str:
        """The preset or the environments, the protocol, and what was changed in the protocol, in words."""
        applied = self.applied
        what = applied["preset"] or ", ".join(self.envs) or "No finished run"
        protocol = [f"protocol {applied['protocol']}"] if applied.get("protocol") else []
        switched = [applied["switched"]] if applied.get("switched") else []
        return ", ".join([what, *protocol, *switched])

    @property
    def applied(self) -> dict[str, Any]:
        """The conditions, without those that do not apply because all settings have the same protocol of their own."""
        named = {own_protocol(label) for label in self.labels}
        if len(named) != 1 or None in named:
            return self.conditions
        return {**self.conditions, "preset": None, "protocol": named.pop(), "normalize": None, "anneal": None}

    @property
    def circumstances(self) -> str:
        """What was changed in the protocol, or else the protocol, or else the name."""
        return self.conditions.get("switched") or self.conditions.get("protocol") or self.name

    @property
    def labels(self) -> list[str]:
        """The labels of the settings: those of the paper in its order, then the others."""
        return sorted({record["label"] for record in self.records}, key=order)

    @property
    def scaling(self) -> list[str]:
        """The labels of the settings whose best run has the score 1.

        Settings with a protocol of their own are left out, because the others are compared under the same conditions.
        """
        return [label for label in self.labels if own_protocol(label) is None] or self.labels

    @property
    def own(self) -> "Comparison":
        """The comparison without the runs that were recorded elsewhere."""
        return replace(self, records=[record for record in self.records if record["algorithm"] != ADDED])

    @property
    def baseline(self) -> str:
        """The setting that the others are compared with: SB3's PPO, whatever its arguments."""
        return next((label for label in self.labels if label.split(" ")[0] == BASELINE), BASELINE)

    @property
    def envs(self) -> list[str]:
        """The environments."""
        return sorted({record["env"] for record in self.records})


def order(label: str) -> tuple[int, int, str]:
    """Return the key by which settings are sorted in tables."""
    in_paper, known = [row.label for row in TABLE_1], list(ALGORITHMS)
    name = label.split(" ")[0]
    return (
        in_paper.index(label) if label in in_paper else len(in_paper),
        known.index(name) if name in known else len(known),
        label,
    )


def comparisons(records: Iterable[Record]) -> list[Comparison]:
    """Group the records by their conditions."""
    parts: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        parts[digest(record["conditions"])].append(record)
    found = []
    for part in parts.values():
        finished = [record for record in part if record["status"] != "failed"]
        random = [record for record in finished if record["label"] == RANDOM]
        trainings = _told_apart([record for record in finished if record["label"] != RANDOM])
        failed = [record for record in part if record["status"] == "failed"]
        found.append(Comparison(part[0]["conditions"], trainings, random, failed))
    return sorted(found, key=_place)


def _place(comparison: Comparison) -> tuple[str, bool, list[str], str]:
    """Return the key by which comparisons are sorted in a report: complete protocols before those with changes."""
    conditions = comparison.conditions
    return conditions["preset"] or "", bool(conditions.get("switched")), comparison.envs, comparison.name


def _told_apart(records: list[Record]) -> list[Record]:
    """Give records different labels if they share one despite different hyperparameters, as when defaults changed.

    The labels depend only on the values that changed, so that they are the same in all environments.
    """
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        kinds[record["label"], record["env"]].append(_values(record))
    changed: dict[str, set[str]] = defaultdict(set)
    for (label, _), of in kinds.items():
        changed[label] |= _differing(of)
    return [_labelled(record, changed[record["label"]]) for record in records]


def _values(record: Record) -> dict[str, Any]:
    return {**record["hyperparameters"], "timesteps": record["timesteps"]}


def _differing(kinds: list[dict[str, Any]]) -> set[str]:
    """Return the names that do not have the same value in all of the dicts."""
    names = {name for kind in kinds for name in kind}
    return {name for name in names if len({digest(kind.get(name, "no value")) for kind in kinds}) > 1}


def _labelled(record: Record, changed: set[str]) -> Record:
    if not changed:
        return record
    values = {name: value for name, value in _values(record).items() if name in changed}
    return {**record, "label": f"{record['label']} #{digest(values)[:6]}"}


def table(comparison: Comparison) -> pd.DataFrame:
    """Return a table with a row for each finished training run.

    :return: table with the columns ``label``, ``env``, ``seed``, ``timesteps``, ``score`` (NaN if no episode ended),
        ``normalised`` (NaN if not known), ``episodes`` (number of episodes that the score is the mean of), ``steps``,
        ``wall_seconds``, ``cpu_seconds`` and ``steps_per_second``
    """
    columns = ["label", "env", "seed", "timesteps", "score", "steps", "wall_seconds", "cpu_seconds"]
    frame = pd.DataFrame(comparison.records, columns=columns)
    frame["score"] = frame["score"].astype(float)
    frame["episodes"] = [len(record["last_returns"]) for record in comparison.records]
    frame["steps_per_second"] = frame["steps"] / frame["wall_seconds"]
    frame["normalised"] = normalised(frame, random_scores(comparison), best_scores(comparison))
    frame["order"] = frame["label"].map(order)
    return frame.sort_values(["order", "env", "seed"], ignore_index=True).drop(columns="order")


def random_scores(comparison: Comparison) -> dict[str, float]:
    """Return the score of the random policy in each environment where it was measured, the first one of several."""
    return {record["env"]: record["score"] for record in reversed(comparison.random) if record["score"] is not None}


def best_scores(comparison: Comparison) -> dict[str, float]:
    """Return the score of the best run in each environment, of the settings that set the scale."""
    scaling, best = comparison.scaling, dict[str, float]()
    for record in comparison.records:
        if record["label"] in scaling and record["score"] is not None:
            best[record["env"]] = max(record["score"], best.get(record["env"], -np.inf))
    return best


def normalised(frame: pd.DataFrame, random: dict[str, float], best: dict[str, float]) -> pd.Series:
    """Shift and scale scores in each environment so that the random policy has 0 and the best run 1.

    They are NaN where the random policy was not measured, or the best run is not better than it.
    """
    low, high = (frame["env"].map(of_env).astype(float) for of_env in (random, best))
    span = high - low
    return (frame["score"] - low) / span.where(span > 0)


def normalised_curves(comparison: Comparison, frame: pd.DataFrame) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the curves of each setting, scaled like its scores, from where every run that counts has a value.

    Added runs are left out, because their numbers of steps may differ.

    :return: the share of the steps at each point, shape ``(points,)``, and an array of shape
        ``(seeds, environments, points)`` for each setting
    """
    random, best = random_scores(comparison), best_scores(comparison)
    own = comparison.own.labels
    runs = {(record["label"], record["env"], record["seed"]): record for record in comparison.records}
    found = {}
    for label, matrix in matrices(frame)[0].items():
        if label not in own:
            continue
        rows = [[curve(runs[label, env, seed]) for env in matrix.columns] for seed in matrix.index]
        low = np.array([random[env] for env in matrix.columns])[:, None]
        span = np.array([best[env] for env in matrix.columns])[:, None] - low
        found[label] = (np.array(rows, dtype=float) - low) / span
    known = [np.isfinite(array).all(axis=(0, 1)) for array in found.values()]
    whole = np.logical_and.reduce(known) if known else np.zeros(SPANS, dtype=bool)
    shares = np.arange(1, SPANS + 1) / SPANS
    return shares[whole], {label: array[..., whole] for label, array in found.items()}


def unscaled(frame: pd.DataFrame) -> list[str]:
    """Return the environments without normalised scores."""
    return sorted(set(frame["env"]) - set(frame["env"][frame["normalised"].notna()]))


def matrices(frame: pd.DataFrame) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Return the normalised scores of each setting, shape ``(seeds, environments)``, and the settings without any.

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
