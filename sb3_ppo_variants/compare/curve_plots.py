"""Pictures of learning curves, and of the values that updates log."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from matplotlib import pyplot

from sb3_ppo_variants.compare.curves import SPANS
from sb3_ppo_variants.compare.intervals import Band
from sb3_ppo_variants.compare.plots import MEDIUM, SMALL, band, drawn, legend, looks, save, shown
from sb3_ppo_variants.compare.records import Record, curve, is_spanned
from sb3_ppo_variants.compare.scores import Comparison, random_scores
from sb3_ppo_variants.compare.statistics import band as over_seeds

# Curves of means over single spans are averaged over this many spans, so that a picture shows trends.
SMOOTHED = 5
# The logged values to draw, with their names in the picture.
QUANTITIES = {
    "kl": "KL(old || new)",
    "kl_coef": "β",
    "clip_fraction": "share clipped",
    "entropy_loss": "negative entropy",
    "explained_variance": "explained variance",
}


def learned(comparison: Comparison, env: str, label: str) -> tuple[np.ndarray, Band] | None:
    """Return the mean curve of a setting in an environment over its steps, with 95% intervals over seeds.

    Runs that were recorded elsewhere may differ in length. Then the mean is over those that are not over yet.

    :return: the steps, and the curve with its interval; ``None`` if there is no point at which every run has an episode
    """
    records = [record for record in _of(comparison, env, label) if record["last_returns"]]
    lengths = np.array([record["steps"] for record in records])
    longest = lengths.max(initial=0)
    values = pd.DataFrame([curve(record, longest) for record in records], dtype=float)
    # There is no mean before the first episode has ended. A span in which none ended takes the mean of the span before.
    whole = values.ffill(axis=1).dropna(axis=1)
    if whole.empty:
        return None
    if any(map(is_spanned, records)):
        whole = whole.T.rolling(SMOOTHED, min_periods=1).mean().T
    steps = (np.array(whole.columns, dtype=float) + 1) * longest / SPANS
    return steps, _over_runs(whole.where(steps <= lengths[:, None]))


def _over_runs(values: pd.DataFrame) -> Band:
    """Return the mean of curves, of which some end early, with its interval."""
    runs = values.count()
    parts = [values.loc[:, runs == number].dropna() for number in sorted(set(runs), reverse=True)]
    # The runs are the seeds of a single environment.
    found = [over_seeds(part.to_numpy()[:, None]) for part in parts]
    mean, low, high = (np.concatenate(part) for part in zip(*((f.mean, f.low, f.high) for f in found), strict=True))
    return Band(mean, low, high, seeds=values.to_numpy())


def _of(comparison: Comparison, env: str, label: str) -> list[Record]:
    return [record for record in comparison.records if (record["env"], record["label"]) == (env, label)]


def curves(comparison: Comparison, env: str, file: Path) -> None:
    """Draw the learning curves in an environment."""
    with drawn(file) as axes:
        for label in comparison.labels:
            if (found := learned(comparison, env, label)) is not None:
                band(axes, found[0], label, found[1], looks(comparison.labels))
        if env in (random := random_scores(comparison)):
            axes.axhline(random[env], color="0.6", linewidth=1, label="random policy")
        axes.set_xlabel("environment steps", fontsize=MEDIUM)
        axes.set_ylabel("return of an episode", fontsize=MEDIUM)
        axes.set_title(env)


def seconds_of(comparison: Comparison, label: str) -> float:
    """Return the mean wall-clock seconds of a setting's runs, NaN if those of any run are not known."""
    known = [record["wall_seconds"] for record in comparison.records if record["label"] == label]
    return float(np.mean([np.nan if seconds is None else seconds for seconds in known]))


def pace(comparison: Comparison, env: str, label: str) -> float:
    """Return the mean wall-clock seconds of a step in an environment, NaN if those of any run are not known."""
    runs = pd.DataFrame(_of(comparison, env, label), columns=["wall_seconds", "steps"], dtype=float)
    return runs["wall_seconds"].sum(skipna=False) / runs["steps"].sum()


def efficiency(comparison: Comparison, shares: np.ndarray, found: Mapping[str, Band], file: Path) -> None:
    """Draw the mean over environments, against the share of the steps and against the time."""
    figure, (by_steps, by_time) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharey=True)
    look = looks(comparison.labels)
    for label, mean in found.items():
        band(by_steps, 100 * shares, label, mean, look)
        band(by_time, shares * seconds_of(comparison, label) / 60, label, mean, look)
    by_steps.set_xlabel("% of the environment steps", fontsize=MEDIUM)
    by_time.set_xlabel("minutes of a run, mean", fontsize=MEDIUM)
    by_steps.set_ylabel("mean normalised score", fontsize=MEDIUM)
    legend(figure, by_steps)
    save(figure, file)


def training(comparison: Comparison, file: Path) -> bool:
    """Draw the values that updates logged, with a row for each quantity and a column for each environment.

    :return: whether there is anything to draw; records of earlier versions have no logged values
    """
    logged = {name for record in comparison.records for name in record.get("training", {})}
    names = [name for name in QUANTITIES if name in logged]
    if not names:
        return False
    envs = comparison.envs
    size = (2.9 * len(envs) + 0.6, 2.0 * len(names) + 0.4)
    figure, grid = pyplot.subplots(
        len(names), len(envs), figsize=size, sharex="col", squeeze=False, layout="constrained"
    )
    look = looks(comparison.labels)
    for row, name in zip(grid, names, strict=True):
        for axes, env in zip(row, envs, strict=True):
            for label in comparison.labels:
                _logged(axes, _of(comparison, env, label), name, label, look)
            axes.tick_params(labelsize=SMALL)
            if name in ("kl", "kl_coef") and axes.lines:
                axes.set_yscale("log")
        row[0].set_ylabel(QUANTITIES[name], fontsize=SMALL)
    for axes, env in zip(grid[0], envs, strict=True):
        axes.set_title(env, fontsize=MEDIUM)
    for axes in grid[-1]:
        axes.set_xlabel("environment steps", fontsize=SMALL)
    fullest = max(grid.ravel(), key=lambda axes: len(axes.lines))
    legend(figure, fullest)
    save(figure, file)
    return True


def _logged(axes: pyplot.Axes, records: list[Record], name: str, label: str, look: tuple[dict, dict]) -> None:
    """Draw the mean over seeds of a logged value. At this size, intervals would hide one another."""
    rows = [record["training"][name] for record in records if name in record.get("training", {})]
    if rows:
        mean = cast(pd.Series, pd.DataFrame(rows, dtype=float).ffill(axis=1).mean())
        steps = np.arange(1, len(mean) + 1) / len(mean) * np.mean([record["steps"] for record in records])
        axes.plot(steps, mean, color=look[0][label], linestyle=look[1][label], linewidth=1.2, label=shown(label))
