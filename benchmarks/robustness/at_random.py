"""All hyperparameters at random: what a configuration scores, how large its updates are, and a picture."""

from collections.abc import Mapping
from itertools import combinations, pairwise
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import stdtr
from scipy.stats import permutation_test, spearmanr

from benchmarks.robustness.candidates import N_RANDOM
from benchmarks.robustness.scores import estimate, is_of_search, say_better, screened, sensitivity
from sb3_ppo_variants.compare.plots import COLORS, WIDTH, drawing
from sb3_ppo_variants.compare.report import write_table
from sb3_ppo_variants.compare.statistics import ALPHA, Difference, holm

# How many random configurations a user tries.
BUDGETS = (4, 16, 32)
# Between these, runs are counted by the KL of their updates.
SIZES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# How often two objectives are exchanged in a test; often enough that p values near the level are on the right side.
PERMUTATIONS = 99_999
DEPENDENCE = "These are rank correlations of the score with each hyperparameter, the others fixed; * is beyond noise."


def at_random(frame: pd.DataFrame) -> list[str]:
    """Return a table of what the best of some random configurations scores, and say what differs beyond noise."""
    rows, of_all = [], {}
    for candidate, settings in screened(frame).items():
        means = of_all[candidate.name] = settings.mean(axis="columns")
        budgets = [tried for tried in BUDGETS if tried <= len(means)]
        rows.append({
            "objective": candidate.name,
            "configurations": len(means),
            "lower quartile": f"{means.quantile(0.25):.2f}",
            "median": f"{means.median():.2f}",
            "mean": estimate(means.to_numpy()[:, None]),
            **{f"best of {tried}": f"{best_of(means.to_numpy(), tried):.2f}" for tried in budgets},
            **({"sensitivity": f"{sensitivity(settings):.2f}"} if settings.shape[1] > 1 else {}),
        })  # fmt: skip
    said = say_better("With a random configuration", compare_configurations(of_all))
    return [write_table(pd.DataFrame(rows), None), said]


def best_of(values: np.ndarray, tried: int) -> float:
    """Return the mean of the greatest of so many values, over all ways of choosing them.

    The i-th smallest of n values is the greatest of k in C(i - 1, k - 1) of C(n, k) choices.

    :param values: shape (n,)
    :param tried: k, from 1 to n
    """
    ways = [comb(i, tried - 1) for i in range(len(values))]
    return float(np.sort(values) @ ways / sum(ways))


def in_each_environment(frame: pd.DataFrame) -> list[str]:
    """Return a table of what random configurations score in each environment, and say what differs beyond noise."""
    means, said = {}, []
    for env, runs in frame.groupby("env"):
        of_all = {candidate.name: settings[env] for candidate, settings in screened(runs).items()}
        means[env] = {name: estimate(scores.to_numpy()[:, None]) for name, scores in of_all.items()}
        said.append(say_better(f"With a random configuration in {env}", compare_configurations(of_all)))
    return [write_table(pd.DataFrame(means), "objective"), *said] if len(means) > 1 else []


def compare_configurations(of_all: Mapping[str, pd.Series]) -> dict[tuple[str, str], Difference]:
    """Compare what each pair of candidates scores with the same configurations, in both orders.

    The permutation tests exchange two candidates in random ones of their configurations, and are corrected for the
    number of pairs.

    :param of_all: scores by the number of the configuration
    """
    gains = {(one, other): (of_all[one] - of_all[other]).dropna() for one, other in combinations(of_all, 2)}
    p = [
        permutation_test([gain], np.mean, permutation_type="samples", n_resamples=PERMUTATIONS, rng=0).pvalue
        for gain in gains.values()
    ]
    compared = {}
    for ((one, other), gain), corrected in zip(gains.items(), holm(np.array(p)), strict=True):
        scores = gain.to_numpy()[:, None]
        compared[one, other] = Difference(estimate(scores), corrected)
        compared[other, one] = Difference(estimate(-scores), corrected)
    return compared


def by_size(frame: pd.DataFrame) -> list[str]:
    """Return a table of the updates' KL of each candidate, and one of the scores and numbers of runs by that size."""
    first = frame[is_of_search(frame)]
    quartiles = first.groupby("candidate")["kl"].quantile([0.25, 0.5, 0.75]).map("{:.2g}".format).unstack()
    candidates = [candidate.name for candidate in screened(frame)]
    quartiles = quartiles.loc[candidates]
    quartiles.columns = ["lower quartile", "median KL of an update", "upper quartile"]
    ends = [-np.inf, *SIZES, np.inf]
    names = [f"below {SIZES[0]:g}", *(f"{low:g} to {high:g}" for low, high in pairwise(SIZES)), f"above {SIZES[-1]:g}"]
    sizes = pd.cut(first["kl"], ends, labels=names)
    means = {
        f"mean score in {env}": runs.groupby(sizes, observed=True)["scaled"].apply(
            lambda scores: estimate(scores.to_numpy()[:, None])
        )
        for env, runs in first.groupby("env")
    }
    counts = pd.crosstab(sizes, first["candidate"]).reindex(columns=candidates)
    rows = pd.DataFrame({**means, "runs": counts.sum(axis="columns"), **counts}, counts.index)
    return [write_table(quartiles, "objective"), write_table(rows, "median KL of an update")]


def correlate(frame: pd.DataFrame) -> list[str]:
    """Return a table of how scores depend on each hyperparameter, of candidates that have all random configurations."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for candidate, settings in screened(frame).items():
        if len(settings) < N_RANDOM:
            continue
        values = pd.DataFrame(candidate.at_random).dropna(axis="columns")
        pairs = zip(*partial_correlations(values.to_numpy(), settings.mean(axis="columns").to_numpy()), strict=True)
        found.update(((candidate.name, name), pair) for name, pair in zip(values, pairs, strict=True))
    if not found:
        return []
    corrected = holm(np.array([p for _, p in found.values()])).tolist()
    cells = [f"{rho:.2f}{' *' * (p <= ALPHA)}" for (rho, _), p in zip(found.values(), corrected, strict=True)]
    table = pd.Series(cells, pd.MultiIndex.from_tuples(found)).unstack(sort=False)
    return [write_table(table, "objective"), DEPENDENCE]


def partial_correlations(values: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank correlation of scores with each value while the others stay the same, and its p value.

    :param values: shape (configurations, hyperparameters)
    :param scores: shape (configurations,)
    """
    precision = np.linalg.inv(spearmanr(np.column_stack([values, scores])).statistic)
    found = -precision[-1, :-1] / np.sqrt(precision[-1, -1] * np.diag(precision)[:-1])
    freedom = len(scores) - values.shape[1] - 1
    return found, 2 * stdtr(freedom, -np.abs(found) * np.sqrt(freedom / (1 - found**2)))


def draw_at_random(frame: pd.DataFrame, file: Path) -> None:
    """Draw scores of random configurations, of the best of some, and by the size of updates, for each environment."""
    envs = sorted(frame["env"].unique())
    names = ("share with a higher score", "score of the best", "score")
    with drawing(file, len(envs), len(names), (WIDTH, 0.8 + 2.0 * len(envs)), sharex="col") as grid:
        for (share, best, size), env in zip(grid, envs, strict=True):
            runs = frame[frame["env"] == env]
            for (candidate, settings), color in zip(screened(runs).items(), COLORS, strict=False):
                scores = np.sort(settings[env].to_numpy())
                share.step(scores, 1 - np.arange(len(scores)) / len(scores), color=color, label=candidate.name)
                tried = range(1, len(scores) + 1)
                best.plot(tried, [best_of(scores, each) for each in tried], color=color)
                own = runs[(runs["candidate"] == candidate.name) & is_of_search(runs)]
                size.plot(own["kl"], own["scaled"], ".", color=color)
            for axes, name in zip((share, best, size), names, strict=True):
                axes.set_ylabel(name)
            share.set_title(env)
            size.set_xscale("log")
        for axes, name in zip(grid[-1], ("score", "configurations tried", "median KL of an update"), strict=True):
            axes.set_xlabel(name)
