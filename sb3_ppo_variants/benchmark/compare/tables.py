"""Tables of a report, in Markdown."""

from collections.abc import Iterable, Sequence

import pandas as pd

from sb3_ppo_variants.benchmark.compare.paper import Estimate
from sb3_ppo_variants.benchmark.compare.plan import RANDOM
from sb3_ppo_variants.benchmark.compare.records import Record
from sb3_ppo_variants.benchmark.compare.scores import Comparison, random_scores


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table in Markdown."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows), ""]


def final_scores(comparison: Comparison, frame: pd.DataFrame) -> list[str]:
    """The mean score of each setting in each environment, with the standard deviation over seeds."""
    random = random_scores(comparison)
    rows = [[RANDOM, *(_number(random.get(env)) for env in comparison.envs)]]
    for label in comparison.labels:
        of_label = frame[frame["label"] == label]
        rows.append([label, *(_mean(of_label[of_label["env"] == env]["score"]) for env in comparison.envs)])
    return markdown(["setting", *comparison.envs], rows)


def estimates(found: dict[str, dict[str, Estimate]], seeds: dict[str, int]) -> list[str]:
    """Estimates of each setting, a column for each."""
    columns = list(next(iter(found.values())))
    rows = [[label, seeds[label], *row.values()] for label, row in found.items()]
    return markdown(["setting", "seeds", *columns], rows)


def speed(comparison: Comparison, frame: pd.DataFrame) -> list[str]:
    """Steps per second and time of each setting, means over its runs."""
    rows = []
    for label in comparison.labels:
        runs = frame[frame["label"] == label]
        means = [f"{runs[column].mean():.0f}" for column in ("steps_per_second", "wall_seconds", "cpu_seconds")]
        rows.append([label, len(runs), *means])
    columns = ["setting", "runs", "steps per second", "seconds of a run", "seconds of CPU of a run"]
    return markdown(columns, rows)


def failures(failed: Sequence[Record]) -> list[str]:
    """The failed runs with what they raised."""
    lines = []
    for record in failed:
        lines += [f"{record['label']}, {record['env']}, seed {record['seed']}:", ""]
        lines += ["```", record["error"].strip(), "```", ""]
    return lines


def _mean(of_seeds: pd.Series) -> str:
    known = of_seeds.dropna()
    if known.empty:
        return "" if of_seeds.empty else "no episode ended"
    spread = f" ± {_number(known.std())}" if len(known) > 1 else ""
    return f"{_number(known.mean())}{spread} ({len(known)})"


def _number(value: float | None) -> str:
    """Four digits, which is more than seeds agree in."""
    if value is None or pd.isna(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
