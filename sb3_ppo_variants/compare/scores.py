"""Scores of comparisons, made from records."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile

import numpy as np
import pandas as pd

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.compare import ALGORITHM_PATHS, BASELINE, statistics
from sb3_ppo_variants.compare.plan import own_protocol, say_conditions
from sb3_ppo_variants.compare.records import ADDED, RANDOM, SPANS, Record, curve, digest
from sb3_ppo_variants.errors import ArgumentError

# Where the arguments in a label begin.
ARGUMENTS = re.compile(r",? (?=\w+=)")


class Comparison:
    """Runs under the same conditions, their scores, and how these differ.

    A setting is known by its label. ``records`` are those of finished trainings, ``own`` the ones of them that were not
    recorded elsewhere, ``random`` those of the random policy, and ``failed`` the rest.
    """

    names: Mapping[str, str] = {}
    """What settings are called instead of their labels."""

    def __init__(self, records: Sequence[Record]):
        self.conditions: Values = records[0]["conditions"]
        self.name = digest(self.conditions)[:6]
        finished = [record for record in records if record["status"] == "finished"]
        self.failed = [record for record in records if record["status"] == "failed"]
        self.random = [record for record in finished if record["label"] == RANDOM]
        self.records = [record for record in finished if record["label"] != RANDOM]
        self.own = [record for record in self.records if record["algorithm"] != ADDED]
        self.labels = sorted({record["label"] for record in self.records}, key=order)
        self.envs = sorted({record["env"] for record in self.records})
        own = {record["label"] for record in self.own}
        what = self.conditions["preset"] or ", ".join(self.envs) or "No finished run"
        self.title = ", ".join(filter(None, [what, say_conditions(self.conditions)]))
        # The setting that the others are compared with: SB3's PPO, whatever its arguments.
        self.baseline = next((label for label in self.labels if label.split(" ")[0] == BASELINE), BASELINE)
        self.added = [label for label in self.labels if label not in own]
        # The scale of the scores is that of settings without a protocol of their own, if there are any.
        own = own or {*self.labels}
        scaling = {label for label in own if own_protocol(label) is None} or own
        self.not_scaling = [label for label in self.labels if label not in scaling]
        # The first one of several.
        self.random_scores = {r["env"]: r["score"] for r in reversed(self.random) if r["score"] is not None}
        self.scale = self._make_scale()
        self.table = self._make_table()
        self.scaled_envs = sorted(set(self.table["env"][self.table["normalised"].notna()]))
        # The normalised scores of the seeds with a run in every environment that has some.
        self.matrices: dict[str, pd.DataFrame] = {}
        for label, rows in self.table.groupby("label", sort=False):
            matrix = rows.pivot(index="seed", columns="env", values="normalised").reindex(columns=self.scaled_envs)
            if not (matrix := matrix.dropna()).empty:
                self.matrices[label] = matrix
        arrays = {label: matrix.to_numpy() for label, matrix in self.matrices.items()}
        # Everywhere, settings are in order of their mean scores, and those without a score come last.
        self.arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].mean()))
        self.labels = [*dict.fromkeys([*self.arrays, *self.labels])]
        self.table = self.table.sort_values("label", key=lambda of: of.map(self.labels.index), kind="stable")
        self.tested = {label: array for label, array in self.arrays.items() if label not in self.added}
        # What has runs, maybe failed ones, but no such score.
        tried = [record for record in [*self.records, *self.failed] if record["label"] != RANDOM]
        self.incomplete = sorted({record["label"] for record in tried} - self.arrays.keys(), key=order)
        self.without_scale = sorted({record["env"] for record in tried} - {*self.scaled_envs})

    def _make_scale(self) -> pd.DataFrame:
        """Tabulate the scores in each environment that are scaled to 0, the random policy's, and to 1, the best run's.

        The best is that of the runs that set the scale and are better than the random policy. Where there is none, it
        is that of all runs that were not recorded elsewhere.
        """
        frame = pd.DataFrame(self.own or self.records, columns=["label", "env", "score"])
        frame = frame.astype({"score": float}).set_index("env")
        low = pd.Series(self.random_scores, dtype=float)
        scaling = frame[~frame["label"].isin(self.not_scaling) & ~(frame["score"] <= low.reindex(frame.index))]
        best = [each["score"].groupby("env").max() for each in (scaling, frame)]
        return pd.DataFrame({"low": low, "high": best[0].combine_first(best[1])})

    def _make_table(self) -> pd.DataFrame:
        """Make a row for each finished training run. A score without an episode, or a scale, is NaN.

        Normalised scores are NaN in environments where the random policy was not measured, or no run is better than it.
        """
        columns = ["label", "env", "seed", "timesteps", "score", "steps", "wall_seconds", "cpu_seconds"]
        found = sorted(self.records, key=lambda record: (order(record["label"]), record["env"], record["seed"]))
        frame = pd.DataFrame(found, columns=columns).astype({"score": float})
        frame["episodes"] = [len(record["last_returns"]) for record in found]
        frame["steps_per_second"] = frame["steps"] / frame["wall_seconds"]
        low, high = (frame["env"].map(self.scale[end]) for end in ("low", "high"))
        frame["normalised"] = (frame["score"] - low) / (high - low).where(high > low)
        return frame

    @cached_property
    def shared(self) -> list[str]:
        """The arguments that all settings have in common, if there are several."""
        of_each = [re.split(ARGUMENTS, label)[1:] for label in self.labels]
        return [each for each in of_each[0] if all(each in own for own in of_each[1:])] if len(of_each) > 1 else []

    def show(self, label: str) -> str:
        """Return what a setting is called: a name that was given, or its label without what all have in common."""
        name, *own = re.split(ARGUMENTS, label)
        return self.names.get(label, f"{name} {', '.join(each for each in own if each not in self.shared)}".strip())

    @cached_property
    def doubts(self) -> dict[str, str]:
        """Why some settings are not called better: they were recorded elsewhere, or their worst runs may be missing."""
        found = dict.fromkeys(self.added, "recorded elsewhere")
        for label in dict.fromkeys(record["label"] for record in self.own):
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

    @cached_property
    def parts(self) -> dict[str, "Comparison"]:
        """The comparison in each environment, and if there are several, this one of all."""
        if len(self.envs) < 2:
            return dict.fromkeys(self.envs, self)
        runs = [*self.random, *self.records, *self.failed]
        return {env: Comparison([run for run in runs if run["env"] == env]) for env in self.envs} | {"mean score": self}

    def are_equivalent(self, one: str, other: str) -> bool:
        """Whether tests show that the means of two settings hardly differ. Settings in doubt are not tested."""
        no_doubt = not {one, other} & self.doubts.keys()
        return no_doubt and statistics.are_equivalent(self.arrays[one], self.arrays[other])

    @property
    def best(self) -> list[str]:
        """The first settings, down to one that another is better than beyond noise; none if there is no such one."""
        unbeaten = [*takewhile(lambda each: not each.worse, self.ranking)]
        is_known = len(unbeaten) < len(self.ranking)
        return [each.label for each in unbeaten if is_known and each.seeds > 1 and each.label not in self.doubts]

    @property
    def ranking(self) -> list[statistics.Ranked]:
        """The settings in order of their mean scores."""
        return statistics.rank(self.arrays, self.differences)

    @cached_property
    def curves(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The share of the steps at each point, and the curves of each setting, scaled like its scores.

        They have the shape ``(seeds, environments, points)`` and begin where every run that counts has a value.
        """
        # Added runs are left out, because their numbers of steps may differ.
        runs = {(record["label"], record["env"], record["seed"]): record for record in self.own}
        low, high = self.scale.loc[self.scaled_envs].to_numpy().T[..., None]
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
    """Group the records by their conditions, of which complete protocols come before those with changes.

    Records of one setting with different hyperparameters are refused, as when the default of an argument changed.
    """
    parts: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        parts[digest(record["conditions"])].append(record)
    found = [Comparison(part) for part in parts.values()]
    for comparison in found:
        kinds: dict[tuple[str, str], str] = {}
        for record in comparison.records:
            values = digest([record["hyperparameters"], record["timesteps"]])
            if kinds.setdefault((record["label"], record["env"]), values) != values:
                raise ArgumentError(
                    f"the runs of {record['label']} in {record['env']} have different hyperparameters, as when a "
                    "default changes with the version: report them apart, from folders of their own"
                )
    return sorted(
        found, key=lambda c: (c.conditions["preset"] or "", bool(c.conditions.get("switched")), c.envs, c.name)
    )
