"""The best of the random configurations, which are run again with other seeds than those that chose them."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from benchmarks.robustness.candidates import Candidate
from benchmarks.robustness.scores import (
    by_seed,
    estimate,
    is_of_search,
    label_of,
    say_better,
    screened,
)
from sb3_ppo_variants.compare.report import write_table
from sb3_ppo_variants.compare.statistics import ALPHA, differences, holm, p_values

# These have no part in the choice of one configuration for all environments, so that they show how it does elsewhere.
HELD_OUT = ("BipedalWalker-v3", "Walker2d-v5")
Choice = Callable[[Candidate, pd.DataFrame], pd.Series]


def best_in_each(candidate: Candidate, settings: pd.DataFrame) -> pd.Series:
    """Return the labels of the best configurations, one for each environment."""
    return settings.idxmax().map(lambda number: label_of(candidate, candidate.at_random[int(number)]))


def best_in_all(candidate: Candidate, settings: pd.DataFrame) -> pd.Series:
    """Return the label of the configuration with the best mean of those not held out, the same for each environment."""
    chosen_in = [env for env in settings if env not in HELD_OUT] or [*settings]
    number = settings[chosen_in].mean(axis="columns").idxmax()
    return pd.Series(label_of(candidate, candidate.at_random[int(number)]), settings.columns)


def confirmed(frame: pd.DataFrame) -> list[str]:
    """Return tables of the defaults and the best random configurations, in each environment and in all of them."""
    envs = sorted(frame["env"].unique())
    chosen = [confirmed_in(f"in {env}", "best configuration", frame, [env], best_in_each) for env in envs]
    if len(envs) > 1:
        chosen.append(confirmed_in("in all environments", "best configuration", frame, envs, best_in_all))
        for env in sorted({*envs}.intersection(HELD_OUT)):
            chosen.append(confirmed_in(f"in {env}", "best of the others", frame, [env], best_in_all))
    return [block for blocks in chosen for block in blocks]


def confirmed_in(where: str, name: str, frame: pd.DataFrame, envs: list[str], choose: Choice) -> list[str]:
    """Return a table of the defaults and the chosen random configurations, these with fresh seeds, and what differs.

    It is empty unless both the chosen configurations and the best of each environment have two fresh seeds.

    :param where: the environments in words
    :param name: what is chosen, in words
    :param envs: the environments whose scores count
    :param choose: chooses a candidate's configuration for each environment
    """
    rows, defaults, chosen, own = [], {}, {}, {}
    by_default = frame[frame["env"].isin(envs) & ~frame["is_random"]]
    for candidate, settings in screened(frame).items():
        best, best_of_each = (each(candidate, settings)[envs] for each in (choose, best_in_each))
        again, in_each = (fresh_scores(frame, labels) for labels in (best, best_of_each))
        if min(len(again), len(in_each)) < 2:
            return []
        # Where both are the same configuration, so are its runs, and there is nothing to compare.
        if (differ := (best != best_of_each).to_numpy()).any():
            own[candidate.name] = in_each[:, differ], again[:, differ]
        searched = frame[is_of_search(frame) & (frame["label"] == frame["env"].map(best))]["scaled"].mean()
        default = by_default[by_default["candidate"] == candidate.name]
        if default["env"].nunique() == len(envs):
            defaults[candidate.name] = by_seed(default)
        chosen[candidate.name] = again
        rows.append({
            "objective": candidate.name,
            "default": estimate(defaults[candidate.name]) if candidate.name in defaults else "",
            f"{name}, in the search": f"{searched:.2f}",
            name: estimate(again),
            "which is": best.iloc[0],
            **({"best of each environment": estimate(in_each)} if choose is not best_in_each else {}),
        })  # fmt: skip
    said = [say_better(f"With the {name} {where}", differences(chosen))]
    if own:
        said.append(say_apart(f"The {name} {where} differs from the best of each environment", own))
    if len(defaults) == len(chosen):
        pairs = {candidate: (chosen[candidate], defaults[candidate]) for candidate in chosen}
        if choose is best_in_each or len(envs) > 1:  # Otherwise, the table of the best of its own search has said it.
            said.append(say_better(f"With the defaults {where}", differences(defaults)))
        said.append(say_apart(f"The {name} {where} differs from the default", pairs))
    return [write_table(pd.DataFrame(rows), None), *said]


def fresh_scores(frame: pd.DataFrame, labels: pd.Series) -> np.ndarray:
    """Return what configurations score with the seeds that did not choose them, shape (seeds, environments).

    :param labels: a configuration for each environment
    """
    fresh = frame[frame["is_random"] & (frame["seed"] > 0) & (frame["label"] == frame["env"].map(labels))]
    return fresh.pivot_table("scaled", "seed", "env").reindex(columns=labels.index).dropna().to_numpy()


def say_apart(what: str, pairs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """Say for which candidates two sets of scores differ beyond noise.

    :param what: the first words
    :param pairs: the scores of each candidate, both of shape (seeds, environments)
    """
    corrected = holm(p_values(list(pairs.values())))
    apart = [f"{name} (p = {p:.2g})" for name, p in zip(pairs, corrected, strict=True) if p <= ALPHA]
    return f"{what} beyond noise: {', '.join(apart) or 'of no objective'}."
