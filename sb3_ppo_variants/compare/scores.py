"""Tables of scores, made from records."""

import math
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import yaml

from sb3_ppo_variants.compare.added import ADDED
from sb3_ppo_variants.compare.options import ALGORITHM_PATHS, BASELINE
from sb3_ppo_variants.compare.records import RANDOM, SPANS, Record, curve, digest
from sb3_ppo_variants.compare.settings import own_protocol
from sb3_ppo_variants.compare.statistics import Differences, Ranked, are_equivalent, differences, rank
from sb3_ppo_variants.saving.plain import Values

RANDOM_AND_HUMAN: dict[str, list[float]] = yaml.safe_load(Path(__file__).with_name("atari.yml").read_text())
# ALE/Breakout-v5, BreakoutNoFrameskip-v4, BreakoutDeterministic-v4 and Breakout-v4 are the same game. A module to
# import may come first, as in ale_py:ALE/Breakout-v5.
GAME = re.compile(r"(?:.+:)?(?:ALE/)?([A-Za-z]+?)(?:NoFrameskip|Deterministic)?-v\d+")


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
        applied = self.applied
        what = applied["preset"] or ", ".join(self.envs) or "No finished run"
        protocol = applied.get("protocol") and f"protocol {applied['protocol']}"
        return ", ".join(filter(None, [what, protocol, applied.get("switched")]))

    @property
    def applied(self) -> Values:
        """The conditions, without those that do not apply because all settings have the same protocol of their own."""
        named = {own_protocol(label) for label in self.labels}
        if len(named) != 1 or None in named:
            return self.conditions
        return {**self.conditions, "preset": None, "protocol": named.pop(), "normalize": None, "anneal": None}

    @property
    def circumstances(self) -> str:
        """What was changed in the protocol, or else the protocol, or else the name."""
        return self.conditions.get("switched") or self.conditions.get("protocol") or self.name

    @cached_property
    def labels(self) -> list[str]:
        """The labels of the settings."""
        return sorted({record["label"] for record in self.records}, key=order)

    @property
    def scaling(self) -> list[str]:
        """The labels of the settings whose best run has the score 1.

        They are those without a protocol of their own. Runs that were recorded elsewhere change no score but their own.
        """
        labels = self.scaled_by.labels
        return [label for label in labels if own_protocol(label) is None] or labels

    @cached_property
    def own(self) -> "Comparison":
        """The comparison without the runs that were recorded elsewhere."""
        return replace(self, records=[record for record in self.records if record["algorithm"] != ADDED])

    @property
    def scaled_by(self) -> "Comparison":
        """The runs that may set the scale: those of this comparison or, if there are none, those recorded elsewhere."""
        return self.own if self.own.records else self

    @property
    def added(self) -> list[str]:
        """The labels of the settings that were recorded elsewhere."""
        return [label for label in self.labels if label not in self.own.labels]

    @property
    def baseline(self) -> str:
        """The setting that the others are compared with: SB3's PPO, whatever its arguments."""
        return next((label for label in self.labels if label.split(" ")[0] == BASELINE), BASELINE)

    @cached_property
    def envs(self) -> list[str]:
        """The environments."""
        return sorted({record["env"] for record in self.records})

    @property
    def random_scores(self) -> dict[str, float]:
        """The score of the random policy in each environment where it was measured, the first one of several."""
        return {record["env"]: record["score"] for record in reversed(self.random) if record["score"] is not None}

    @cached_property
    def best_runs(self) -> dict[str, Record]:
        """The best run in each environment, of the settings that set the scale.

        Where none of these is better than the random policy, it is the best of all that were not recorded elsewhere.
        """
        best: dict[str, Record] = {}
        for env in self.envs:
            of_env = [record for record in self.scaled_by.records if record["env"] == env]
            runs = [record for record in of_env if record["score"] is not None]
            low = self.random_scores.get(env, -math.inf)
            learned = [run for run in runs if run["label"] in self.scaling and cast(float, run["score"]) > low]
            if runs:
                best[env] = max(learned or runs, key=lambda run: cast(float, run["score"]))
        return best

    @property
    def best_scores(self) -> dict[str, float]:
        """The score of the best run in each environment."""
        return {env: cast(float, record["score"]) for env, record in self.best_runs.items()}

    @cached_property
    def table(self) -> pd.DataFrame:
        """A table with a row for each finished training run. A score without an episode, or a scale, is NaN."""
        columns = ["label", "env", "seed", "timesteps", "score", "steps", "wall_seconds", "cpu_seconds"]
        frame = pd.DataFrame(self.records, columns=columns)
        frame["score"] = frame["score"].astype(float)
        frame["episodes"] = [len(record["last_returns"]) for record in self.records]
        frame["steps_per_second"] = frame["steps"] / frame["wall_seconds"]
        frame["normalised"] = normalise(frame, self.random_scores, self.best_scores)
        frame["order"] = frame["label"].map(order)
        return frame.sort_values(["order", "env", "seed"], ignore_index=True).drop(columns="order")

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The normalised scores that count, by setting."""
        return arrays(self.table)

    @property
    def tried(self) -> tuple[list[str], list[str]]:
        """The settings and the environments, with those of which every run failed."""
        failed = [record for record in self.failed if record["label"] != RANDOM]
        known = {label.partition(" #")[0] for label in self.labels}
        labels = {*self.labels, *({record["label"] for record in failed} - known)}
        return sorted(labels, key=order), sorted({*self.envs, *(record["env"] for record in failed)})

    @property
    def incomplete(self) -> list[str]:
        """The settings that have runs, but none that count."""
        return [label for label in self.tried[0] if label not in self.arrays]

    @property
    def without_scale(self) -> list[str]:
        """The environments without normalised scores."""
        scaled = scaled_envs(self.table)
        return [env for env in self.tried[1] if env not in scaled]

    @cached_property
    def doubts(self) -> dict[str, str]:
        """Why some settings are not called better than others.

        The score of a setting that was recorded elsewhere is that of another part of training, and runs without a score
        may be the worst of their setting.
        """
        found = dict.fromkeys(self.added, "recorded elsewhere")
        for label in self.own.labels:
            runs = self.runs(label)
            failed = sum(label.partition(" #")[0] == record["label"] for record in self.failed)
            lost = failed + sum(record["score"] is None for record in runs)
            if lost:
                found[label] = f"{lost} of {failed + len(runs)} runs have no score"
        return found

    @cached_property
    def differences(self) -> Differences:
        """How the means of each pair of settings differ, in both orders, without p values where there are doubts."""
        return without_doubtful(differences(self.arrays, self.added), self.doubts)

    @property
    def tested(self) -> dict[str, np.ndarray]:
        """The normalised scores of the settings that are tested: those that were not recorded elsewhere."""
        return {label: own for label, own in self.arrays.items() if label not in self.added}

    def are_equivalent(self, one: str, other: str) -> bool:
        """Whether tests show that the means of two settings hardly differ. Settings in doubt are not tested."""
        no_doubt = not {one, other} & self.doubts.keys()
        return no_doubt and are_equivalent(self.arrays[one], self.arrays[other])

    @property
    def ranking(self) -> list[Ranked]:
        """The settings in order of their mean scores."""
        return rank(self.arrays, self.differences)

    def runs(self, label: str, env: str | None = None) -> list[Record]:
        """Select the records of a setting, in one environment or in all."""
        return [record for record in self.records if record["label"] == label and env in (None, record["env"])]

    def logged(self, label: str, name: str) -> list[float]:
        """List what the updates of a setting logged under a name, averaged over each hundredth of a run."""
        of_runs = [record.get("training", {}).get(name, []) for record in self.runs(label)]
        return [value for of_run in of_runs for value in of_run if value is not None]


def without_doubtful(found: Differences, doubts: Container[str]) -> Differences:
    """Remove the p values of differences whose better setting is in doubt."""
    return {
        pair: replace(each, p=math.nan) if (pair[0] if each.estimate.value > 0 else pair[1]) in doubts else each
        for pair, each in found.items()
    }


def order(label: str) -> tuple[int, str, tuple[float, ...], str]:
    """Return the key by which settings are sorted in tables: the algorithm, then the arguments and their numbers."""
    numbers = re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", label)
    words = re.sub(r"[\d.]+", "", label)
    return find(label.split(" ")[0], list(ALGORITHM_PATHS)), words, tuple(map(float, numbers)), label


def find(value: str, values: Sequence[str]) -> int:
    """Find the place of a value among others, or behind them if it is none of them."""
    return values.index(value) if value in values else len(values)


def comparisons(records: Iterable[Record]) -> list[Comparison]:
    """Group the records by their conditions."""
    parts: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        parts[digest(record["conditions"])].append(record)
    found = []
    for part in parts.values():
        finished = [record for record in part if record["status"] != "failed"]
        random = [record for record in finished if record["label"] == RANDOM]
        trainings = _tell_apart([record for record in finished if record["label"] != RANDOM])
        failed = [record for record in part if record["status"] == "failed"]
        found.append(Comparison(part[0]["conditions"], trainings, random, failed))
    # Complete protocols come before those with changes.
    found.sort(key=lambda c: (c.conditions["preset"] or "", bool(c.conditions.get("switched")), c.envs, c.name))
    return found


def _tell_apart(records: list[Record]) -> list[Record]:
    """Give records different labels if they share one despite different hyperparameters, as when defaults changed.

    The labels depend only on the values that changed. They are the same in all environments that have the same values.
    """
    values = [{**record["hyperparameters"], "timesteps": record["timesteps"]} for record in records]
    digests = pd.DataFrame([{name: digest(value) for name, value in of_run.items()} for of_run in values])
    settings = pd.DataFrame(records, columns=["label", "env"])
    kinds = digests.groupby([settings["label"], settings["env"]]).nunique(dropna=False)
    several = (kinds > 1).groupby(level="label").any()
    found = []
    for record, of_run in zip(records, values, strict=True):
        changed = set(several.columns[several.loc[record["label"]]])
        named = digest({name: of_run[name] for name in of_run.keys() & changed})[:6]
        label = f"{record['label']} #{named}" if changed else record["label"]
        found.append(cast(Record, {**record, "label": label}))
    return found


def normalise(frame: pd.DataFrame, random: dict[str, float], best: dict[str, float]) -> pd.Series:
    """Shift and scale scores in each environment so that the random policy has 0 and the best run 1.

    They are NaN where the random policy was not measured, or the best run is not better than it.
    """
    low, high = (frame["env"].map(of_env).astype(float) for of_env in (random, best))
    span = high - low
    return (frame["score"] - low) / span.where(span > 0)


def normalised_curves(comparison: Comparison) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Compute the share of the steps at each point, and the curves of each setting, scaled like its scores.

    They have the shape ``(seeds, environments, points)`` and begin where every run that counts has a value. Added runs
    are left out, because their numbers of steps may differ.
    """
    random, best = pd.Series(comparison.random_scores), pd.Series(comparison.best_scores)
    own = comparison.own.labels
    runs = {(record["label"], record["env"], record["seed"]): record for record in comparison.records}
    found = {}
    for label, matrix in matrices(comparison.table).items():
        if label in own:
            curves = [[curve(runs[label, env, seed]) for env in matrix.columns] for seed in matrix.index]
            low, high = (of_envs[matrix.columns].to_numpy()[:, None] for of_envs in (random, best))
            found[label] = (np.array(curves, dtype=float) - low) / (high - low)
    known = [np.isfinite(array).all(axis=(0, 1)) for array in found.values()]
    whole = np.logical_and.reduce(known) if known else np.zeros(SPANS, dtype=bool)
    shares = np.arange(1, SPANS + 1) / SPANS
    return shares[whole], {label: array[..., whole] for label, array in found.items()}


def scaled_envs(frame: pd.DataFrame) -> list[str]:
    """List the environments with normalised scores."""
    return sorted(set(frame["env"][frame["normalised"].notna()]))


def matrices(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Collect the normalised scores of each setting, for the seeds with a run in every environment that has some."""
    envs = scaled_envs(frame)
    pivoted = {
        label: rows.pivot(index="seed", columns="env", values="normalised").reindex(columns=envs).dropna()
        for label, rows in frame.groupby("label", sort=False)
    }
    return {label: matrix for label, matrix in pivoted.items() if not matrix.empty}


def arrays(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Convert the :func:`matrices` to arrays."""
    return {label: matrix.to_numpy() for label, matrix in matrices(frame).items()}


def game_of(env: str) -> str | None:
    """Find the name of an environment's Atari game, or ``None`` if there is no human score for it."""
    found = GAME.fullmatch(env)
    return found[1] if found and found[1] in RANDOM_AND_HUMAN else None


def normalise_by_humans(frame: pd.DataFrame) -> pd.DataFrame:
    """Normalise the rows of Atari games, with ``normalised`` 0 for the published random policy and 1 for the human."""
    games = frame["env"].map(game_of, na_action="ignore").dropna()
    found = frame.loc[games.index].copy()
    low, high = (games.map({game: pair[end] for game, pair in RANDOM_AND_HUMAN.items()}) for end in (0, 1))
    found["normalised"] = (found["score"] - low) / (high - low)
    return found
