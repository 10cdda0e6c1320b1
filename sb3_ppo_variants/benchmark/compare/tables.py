"""Tables of a report, in Markdown."""

from collections.abc import Mapping, Sequence

import pandas as pd

from sb3_ppo_variants.benchmark.compare.paper import Estimate
from sb3_ppo_variants.benchmark.compare.plan import RANDOM
from sb3_ppo_variants.benchmark.compare.records import Record
from sb3_ppo_variants.benchmark.compare.scores import Comparison, random_scores


def markdown(frame: pd.DataFrame) -> str:
    """A table with a row for each setting, in Markdown."""
    return frame.rename_axis("setting").to_markdown(disable_numparse=True)


def final_scores(comparison: Comparison, frame: pd.DataFrame) -> str:
    """The mean score of each setting in each environment, with the standard deviation over seeds."""
    cells = frame.groupby(["label", "env"])["score"].apply(_mean).unstack()
    cells.loc[RANDOM] = pd.Series(random_scores(comparison), dtype=float).map(_number)
    return markdown(cells.loc[[RANDOM, *comparison.labels], comparison.envs].fillna(""))


def estimates(found: Mapping[str, Mapping[str, Estimate]], seeds: Mapping[str, int]) -> str:
    """Estimates of each setting, a column for each."""
    frame = pd.DataFrame.from_dict(found, orient="index")
    frame.insert(0, "seeds", pd.Series(seeds))
    return markdown(frame)


def speed(frame: pd.DataFrame) -> str:
    """Steps per second and time of each setting, means over its runs."""
    settings = frame.groupby("label", sort=False)
    means = settings[["steps_per_second", "wall_seconds", "cpu_seconds"]].mean().map("{:.0f}".format)
    means.columns = pd.Index(["steps per second", "seconds of a run", "seconds of CPU of a run"])
    means.insert(0, "runs", settings.size())
    return markdown(means)


def failures(failed: Sequence[Record]) -> list[str]:
    """The failed runs with what they raised."""
    return [
        f"{record['label']}, {record['env']}, seed {record['seed']}:\n\n```\n{record['error'].strip()}\n```"
        for record in failed
    ]


def _mean(of_seeds: pd.Series) -> str:
    known = of_seeds.dropna()
    if known.empty:
        return "no episode ended"
    spread = f" ± {_number(known.std())}" if len(known) > 1 else ""
    return f"{_number(known.mean())}{spread} ({len(known)})"


def _number(value: float) -> str:
    """Four digits, which is more than seeds agree in."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
