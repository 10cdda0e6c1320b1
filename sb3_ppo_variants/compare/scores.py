"""Scores of comparisons, made from records."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from sb3_ppo_variants.compare import ALGORITHM_PATHS, BASELINE, statistics
from sb3_ppo_variants.compare.plan import own_protocol
from sb3_ppo_variants.compare.records import ADDED, RANDOM, SPANS, Record, curve, digest
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.plain import Values


@dataclass(frozen=True)
class Comparison:
    """Runs under the same conditions: finished training runs, runs of the random policy, and failed runs."""

    conditions: Values
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
        what = self.conditions["preset"] or ", ".join(self.envs) or "No finished run"
        protocol = self.conditions.get("protocol") and f"protocol {self.conditions['protocol']}"
        return ", ".join(filter(None, [what, protocol, self.conditions.get("switched")]))

    @cached_property
    def labels(self) -> list[str]:
        """The labels of the settings."""
        return sorted({record["label"] for record in self.records}, key=order)

    @cached_property
    def envs(self) -> list[str]:
        """The environments."""
        return sorted({record["env"] for record in self.records})

    @property
    def baseline(self) -> str:
        """The setting that the others are compared with: SB3's PPO, whatever its arguments."""
        return next((label for label in self.labels if label.split(" ")[0] == BASELINE), BASELINE)

    @cached_property
    def own(self) -> "Comparison":
        """The comparison without the runs that were recorded elsewhere."""
        return replace(self, records=[record for record in self.records if record["algorithm"] != ADDED])

    @property
    def added(self) -> list[str]:
        """The labels of the settings that were recorded elsewhere."""
        return [label for label in self.labels if label not in self.own.labels]

    @property
    def not_scaling(self) -> list[str]:
        """The labels of the settings whose runs do not set the scale of the scores, if others can.

        They are those with a protocol of their own, and those that were recorded elsewhere.
        """
        own = self.own.labels or self.labels
        scaling = [label for label in own if own_protocol(label) is None] or own
        return [label for label in self.labels if label not in scaling]

    @property
    def random_scores(self) -> dict[str, float]:
        """The score of the random policy in each environment where it was measured, the first one of several."""
        return {record["env"]: record["score"] for record in reversed(self.random) if record["score"] is not None}

    @cached_property
    def best_scores(self) -> dict[str, float]:
        """The score in each environment that is scaled to 1: the best of the runs that set the scale.

        Where none of these is better than the random policy, it is the best of all that were not recorded elsewhere.
        """
        low, not_scaling = self.random_scores, self.not_scaling
        best: dict[str, tuple[bool, float]] = {}
        for record in self.own.records or self.records:
            if (score := record["score"]) is not None:
                env = record["env"]
                rank = record["label"] not in not_scaling and score > low.get(env, -math.inf), score
                best[env] = max(best.get(env, rank), rank)
        return {env: score for env, (_, score) in best.items()}

    @cached_property
    def table(self) -> pd.DataFrame:
        """A table with a row for each finished training run. A score without an episode, or a scale, is NaN.

        Normalised scores are 0 for the random policy and 1 for the best run. They are NaN in environments where the
        random policy was not measured, or no run is better than it.
        """
        columns = ["label", "env", "seed", "timesteps", "score", "steps", "wall_seconds", "cpu_seconds"]
        found = sorted(self.records, key=lambda record: (order(record["label"]), record["env"], record["seed"]))
        frame = pd.DataFrame(found, columns=columns).astype({"score": float})
        frame["episodes"] = [len(record["last_returns"]) for record in found]
        frame["steps_per_second"] = frame["steps"] / frame["wall_seconds"]
        low, high = (frame["env"].map(of_env).astype(float) for of_env in (self.random_scores, self.best_scores))
        frame["normalised"] = (frame["score"] - low) / (high - low).where(high > low)
        return frame

    @property
    def scaled_envs(self) -> list[str]:
        """The environments with normalised scores."""
        return sorted(set(self.table["env"][self.table["normalised"].notna()]))

    @property
    def without_scale(self) -> list[str]:
        """The environments without normalised scores, with those where every run failed."""
        envs = {record["env"] for record in [*self.records, *self.failed] if record["label"] != RANDOM}
        return sorted(envs - {*self.scaled_envs})

    @cached_property
    def matrices(self) -> dict[str, pd.DataFrame]:
        """The normalised scores of each setting, for the seeds with a run in every environment that has some."""
        envs = self.scaled_envs
        pivoted = {
            label: rows.pivot(index="seed", columns="env", values="normalised").reindex(columns=envs).dropna()
            for label, rows in self.table.groupby("label", sort=False)
        }
        return {label: matrix for label, matrix in pivoted.items() if not matrix.empty}

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The ``matrices`` as arrays."""
        return {label: matrix.to_numpy() for label, matrix in self.matrices.items()}

    @property
    def tested(self) -> dict[str, np.ndarray]:
        """The ``arrays`` of the settings that are tested: those that were not recorded elsewhere."""
        return {label: own for label, own in self.arrays.items() if label not in self.added}

    @property
    def incomplete(self) -> list[str]:
        """The settings that have runs, maybe failed ones, but none that count."""
        labels = {record["label"] for record in [*self.records, *self.failed]} - {RANDOM}
        return sorted(labels - self.arrays.keys(), key=order)

    @cached_property
    def doubts(self) -> dict[str, str]:
        """Why some settings are not called better than others.

        The score of a setting that was recorded elsewhere is that of another part of training, and runs without a score
        may be the worst of their setting.
        """
        found = dict.fromkeys(self.added, "recorded elsewhere")
        for label in self.own.labels:
            runs = [*self.runs(label), *(record for record in self.failed if record["label"] == label)]
            if lost := sum(record.get("score") is None for record in runs):
                found[label] = f"{lost} of {len(runs)} runs have no score"
        return found

    @cached_property
    def differences(self) -> statistics.Differences:
        """How the means of each pair of settings differ, in both orders, without p values if the better is in doubt."""
        found = statistics.differences(self.arrays, self.added)
        better = {pair: pair[0] if each.estimate.value > 0 else pair[1] for pair, each in found.items()}
        return {p: replace(each, p=math.nan) if better[p] in self.doubts else each for p, each in found.items()}

    def are_equivalent(self, one: str, other: str) -> bool:
        """Whether tests show that the means of two settings hardly differ. Settings in doubt are not tested."""
        no_doubt = not {one, other} & self.doubts.keys()
        return no_doubt and statistics.are_equivalent(self.arrays[one], self.arrays[other])

    @property
    def ranking(self) -> list[statistics.Ranked]:
        """The settings in order of their mean scores."""
        return statistics.rank(self.arrays, self.differences)

    @cached_property
    def curves(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The share of the steps at each point, and the curves of each setting, scaled like its scores.

        They have the shape ``(seeds, environments, points)`` and begin where every run that counts has a value. Added
        runs are left out, because their numbers of steps may differ.
        """
        runs = {(record["label"], record["env"], record["seed"]): record for record in self.own.records}
        low = np.array([self.random_scores[env] for env in self.scaled_envs])[:, None]
        high = np.array([self.best_scores[env] for env in self.scaled_envs])[:, None]
        found = {}
        for label in self.tested:
            matrix = self.matrices[label]
            curves = [[curve(runs[label, env, seed]) for env in matrix.columns] for seed in matrix.index]
            found[label] = (np.array(curves, dtype=float) - low) / (high - low)
        known = [np.isfinite(array).all(axis=(0, 1)) for array in found.values()]
        whole = np.logical_and.reduce(known) if known else np.zeros(SPANS, dtype=bool)
        shares = np.arange(1, SPANS + 1) / SPANS
        return shares[whole], {label: array[..., whole] for label, array in found.items()}

    def runs(self, label: str, env: str | None = None) -> list[Record]:
        """Select the records of a setting, in one environment or in all."""
        return [record for record in self.records if record["label"] == label and env in (None, record["env"])]

    def logged(self, label: str, name: str) -> list[float]:
        """List what the updates of a setting logged under a name, averaged over each hundredth of a run."""
        of_runs = [record.get("training", {}).get(name, []) for record in self.runs(label)]
        return [value for of_run in of_runs for value in of_run if value is not None]


def order(label: str) -> tuple[int, list[str | float]]:
    """Return the key by which settings are sorted in tables: the algorithm, then the arguments and their numbers."""
    algorithms, name = list(ALGORITHM_PATHS), label.split(" ")[0]
    place = algorithms.index(name) if name in algorithms else len(algorithms)
    # Texts and numbers take turns.
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", label)
    return place, [float(part) if number % 2 else part for number, part in enumerate(parts)]


def comparisons(records: Iterable[Record]) -> list[Comparison]:
    """Group the records by their conditions."""
    parts: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        parts[digest(record["conditions"])].append(record)
    found = []
    for part in parts.values():
        failed = [record for record in part if record["status"] == "failed"]
        random = [record for record in part if record["status"] != "failed" and record["label"] == RANDOM]
        trained = [record for record in part if record["status"] != "failed" and record["label"] != RANDOM]
        _refuse_changed_defaults(trained)
        found.append(Comparison(part[0]["conditions"], trained, random, failed))
    # Complete protocols come before those with changes.
    return sorted(
        found, key=lambda c: (c.conditions["preset"] or "", bool(c.conditions.get("switched")), c.envs, c.name)
    )


def _refuse_changed_defaults(records: Sequence[Record]) -> None:
    """Refuse records of one setting with different hyperparameters, as when the default of an argument changed."""
    found: dict[tuple[str, str], str] = {}
    for record in records:
        values = digest([record["hyperparameters"], record["timesteps"]])
        if found.setdefault((record["label"], record["env"]), values) != values:
            raise ArgumentError(
                f"the runs of {record['label']} in {record['env']} have different hyperparameters, as when a default "
                "changes with the version: report them apart, from folders of their own"
            )
