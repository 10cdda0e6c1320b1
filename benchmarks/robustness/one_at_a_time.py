"""One hyperparameter at a time around the default: a table, and a picture."""

from pathlib import Path

import pandas as pd

from benchmarks.robustness.candidates import CANDIDATES, VARIED, Candidate
from benchmarks.robustness.scores import by_seed, estimate, say_better, sensitivity
from sb3_ppo_variants.compare.plots import COLORS, drawing
from sb3_ppo_variants.compare.report import write_table
from sb3_ppo_variants.compare.statistics import Estimate, differences


def one_at_a_time(frame: pd.DataFrame) -> list[str]:
    """Return a table of the default and the other settings of each candidate, and say what differs beyond noise.

    :param frame: what :func:`varied` returns
    """
    rows, of_all = [], {}
    for candidate in CANDIDATES:
        own = frame[frame["candidate"] == candidate.name]
        if own.empty:
            continue
        default = by_seed(own[own["changed"] == ""])
        of_all[candidate.name] = by_seed(own)
        settings = by_setting(own)
        means = settings.mean(axis="columns").sort_values()
        rows.append({
            "objective": candidate.name,
            "default": estimate(default),
            "mean of all settings": estimate(of_all[candidate.name]),
            "median": f"{means.median():.2f}",
            "worst": f"{means.iloc[0]:.2f}",
            "the worst is": means.index[0],
            "sensitivity": f"{sensitivity(settings):.2f}",
        })  # fmt: skip
    return [write_table(pd.DataFrame(rows), None), say_better("In the mean of all settings", differences(of_all))]


def varied(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the defaults and the runs that vary one hyperparameter, in environments that have both."""
    frame = frame[~frame["is_random"]]
    is_default = frame["changed"] == ""
    envs = {*frame.loc[is_default, "env"]} & {*frame.loc[~is_default, "env"]}
    return frame[frame["env"].isin(envs)]


def by_setting(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds, with a row for each setting that has all environments, and a column for each."""
    return frame.pivot_table("scaled", "label", "env").dropna()


def curve(frame: pd.DataFrame, candidate: Candidate, name: str) -> dict[float, Estimate]:
    """Return the mean score of a candidate by the value of a hyperparameter, all others having their defaults."""
    own = frame[(frame["candidate"] == candidate.name) & frame["changed"].isin(["", name])]
    values = own["value"].where(own["changed"] == name, getattr(candidate.default, name))
    return {value: estimate(by_seed(rows)) for value, rows in own.groupby(values)}


def draw_one_at_a_time(frame: pd.DataFrame, file: Path) -> None:
    """Draw the mean score of each candidate by the value of each hyperparameter, with intervals.

    :param frame: what :func:`varied` returns
    """
    names = ["coefficient", *VARIED]
    with drawing(file, 1, len(names), (3.0 * len(names), 3.2), sharey=True) as grid:
        for name, axes in zip(names, grid[0], strict=True):
            for candidate, color in zip(CANDIDATES, COLORS, strict=False):
                found = curve(frame, candidate, name)
                # The coefficients of different objectives have no common scale, but an order.
                places = [candidate.values.index(value) if name == "coefficient" else value for value in found]
                axes.plot(places, [each.value for each in found.values()], "o-", color=color, label=candidate.name)
                low, high = ([getattr(each, end) for each in found.values()] for end in ("low", "high"))
                axes.fill_between(places, low, high, color=color, alpha=0.12, linewidth=0)
            axes.set_xlabel("coefficient, from its smallest value" if name == "coefficient" else name)
            if name != "coefficient":
                axes.set_xscale("log")
                axes.set_xticks(VARIED[name], [f"{value:g}" for value in VARIED[name]])
                axes.minorticks_off()
            axes.grid(alpha=0.3)
        grid[0, 0].set_ylabel("score")
