"""How robust each objective is to its hyperparameters: tables, and a picture, of the runs of --preset robustness."""

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import stdtr
from scipy.stats import permutation_test, spearmanr

from sb3_ppo_variants.compare import records, tables
from sb3_ppo_variants.compare.plots import COLORS, drawing
from sb3_ppo_variants.compare.records import RANDOM, Record
from sb3_ppo_variants.compare.robustness import CANDIDATES, SAMPLES, VARIED, Candidate, Configuration
from sb3_ppo_variants.compare.settings import read_setting
from sb3_ppo_variants.compare.statistics import (
    ALPHA,
    Difference,
    Differences,
    Estimate,
    differences,
    holm,
    interval,
    p_values,
)
from sb3_ppo_variants.errors import ArgumentError

RESULTS = Path("results/robustness.jsonl.gz")
# Between these percentiles of the runs in an environment, scores are 0 and 1.
ENDS = (5, 95)
# How many random configurations a user tries.
BUDGETS = (4, 16, 32)
# With how many other seeds the best of them are run again.
FRESH = 6
# These have no part in the choice of one configuration for all environments, so that they show how it does elsewhere.
HELD_OUT = ("Walker2d-v5",)
# Between these, runs are counted by the KL of their updates.
SIZES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# How often two objectives are exchanged in a test; often enough that p values near the level are on the right side.
PERMUTATIONS = 99_999
DEPENDENCE = "These are rank correlations of the score with each hyperparameter, the others fixed; * is beyond noise."
EXPLAINED = f"""In each environment, the {ENDS[0]}th percentile of the random configurations has the score 0 and the
{ENDS[1]}th has 1, or those of all runs where no random ones are known. The sensitivity is that of Adkins et al. 2024
(https://arxiv.org/abs/2412.07165): how much better an objective scores if its best configuration is chosen for each
environment than if one is chosen for all of them. The best of few runs is partly luck, which raises it."""


def label_all() -> Iterator[tuple[str, str, str, float, bool]]:
    """Yield the label of each setting, its candidate, what differs from the default, its value, and if it is random."""
    for candidate in CANDIDATES:
        for changed, configuration in candidate.one_at_a_time:
            value = getattr(configuration, changed) if changed else np.nan
            yield label_of(candidate, configuration), candidate.name, changed, value, False
        for number, configuration in enumerate(candidate.at_random):
            yield label_of(candidate, configuration), candidate.name, "", number, True


def label_of(candidate: Candidate, configuration: Configuration) -> str:
    """Return the label of a candidate's runs with a configuration."""
    return read_setting(candidate.setting(configuration)).label


def scaled(found: list[Record]) -> pd.DataFrame:
    """Return a row for each run of the presets, with its score between the ends of its environment.

    A run that failed, or has no score, is as bad as the worst of its environment. While a preset is running,
    environments that not all of its settings have reached are left out.
    """
    settings = pd.DataFrame(label_all(), columns=["label", "candidate", "changed", "value", "is_random"])
    settings["preset"] = np.where(settings["is_random"], "robustness-random", "robustness")
    rows = pd.DataFrame(
        [
            (each["label"], each["conditions"]["preset"], each["env"], each["seed"], each.get("score"), median_kl(each))
            for each in found
            if each["label"] != RANDOM
        ],
        columns=["label", "preset", "env", "seed", "score", "kl"],
    )
    frame = rows.merge(settings, on=["label", "preset"]).astype({"score": float})
    frame["failed"] = frame["score"].isna()
    frame["score"] = frame["score"].fillna(frame.groupby("env")["score"].transform("min"))
    reached = frame.groupby(["preset", "env"])["label"].transform("nunique")
    frame = frame[reached == reached.groupby(frame["preset"]).transform("max")].copy()
    # Later runs, of the defaults or of the best, must not change the scale by which the best were chosen.
    first = is_of_search(frame)
    are_known = first.groupby(frame["env"]).transform("any")
    scores = frame[first | ~are_known].groupby("env")["score"]
    frame["low"], frame["high"] = (frame["env"].map(scores.quantile(end / 100)) for end in ENDS)
    frame["scaled"] = (frame["score"] - frame["low"]) / (frame["high"] - frame["low"])
    return frame


def is_of_search(frame: pd.DataFrame) -> pd.Series:
    """Whether each run is of a random configuration with the first seed, from which the best are chosen."""
    return frame["is_random"] & (frame["seed"] == 0)


def median_kl(record: Record) -> float:
    """Return the median KL(old || new) of a run's updates, averaged over each hundredth of it; NaN if there is none."""
    logged = [kl for kl in record.get("training", {}).get("kl", []) if kl is not None]
    return float(np.median(logged)) if logged else np.nan


def list_ends(frame: pd.DataFrame) -> str:
    """Say which returns have the scores 0 and 1 in each environment."""
    ends = frame.groupby("env")[["low", "high"]].first()
    named = ", ".join(f"{low:,.0f} and {high:,.0f} in {env}" for env, low, high in ends.itertuples())
    return f"The scores 0 and 1 are returns of {named}."


def say_cost(found: list[Record]) -> str:
    """Say how long the runs took."""
    return f"The runs took {sum(each.get('cpu_seconds') or 0 for each in found) / 3600:.1f} core hours."


def count_failures(frame: pd.DataFrame) -> str:
    """Say how many runs of each candidate have no score of their own."""
    counts = frame[frame["failed"]].groupby("candidate", sort=False).size()
    if not len(counts):
        return "All runs have a score."
    named = ", ".join(f"{count} with {candidate}" for candidate, count in counts.items())
    return f"Runs that failed, or ended no episode, count as the worst of their environment: {named}."


def best_of(values: np.ndarray, tried: int) -> float:
    """Return the mean of the greatest of so many values, over all ways of choosing them.

    The i-th smallest of n values is the greatest of k in C(i - 1, k - 1) of C(n, k) choices.

    :param values: shape (n,)
    :param tried: k, from 1 to n
    """
    ways = [comb(i, tried - 1) for i in range(len(values))]
    return float(np.sort(values) @ ways / sum(ways))


def sensitivity(scores: pd.DataFrame) -> float:
    """Return the best configuration of each environment over the best one of all: mean of max minus max of mean.

    :param scores: a row for each configuration, and a column for each environment
    """
    return float(scores.max().mean() - scores.mean(axis="columns").max())


def by_setting(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds, with a row for each setting that has all environments, and a column for each."""
    return frame.pivot_table("scaled", "label", "env").dropna()


def by_seed(frame: pd.DataFrame) -> np.ndarray:
    """Return the mean over settings, shape (seeds, environments), for the seeds with most runs."""
    runs = frame.groupby("seed")["label"].transform("size")
    return frame[runs == runs.max()].pivot_table("scaled", "seed", "env").to_numpy()


def estimate(scores: np.ndarray) -> Estimate:
    """Return the mean of scores, shape (seeds, environments), with its interval."""
    low, high = interval(scores)
    return Estimate(scores.mean(), float(low), float(high))


def one_at_a_time(frame: pd.DataFrame) -> list[str]:
    """Return a table of the default and the other settings of each candidate, and say what differs beyond noise."""
    rows, of_all = [], {}
    for candidate in CANDIDATES:
        own = frame[(frame["candidate"] == candidate.name) & ~frame["is_random"]]
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
    return [tables.markdown(pd.DataFrame(rows), None), say_better("In the mean of all settings", differences(of_all))]


def screened(frame: pd.DataFrame) -> dict[Candidate, pd.DataFrame]:
    """Return the scores of the random configurations with the first seed, a row for each that has all environments.

    Rows have the numbers of their configurations, which are the same for all candidates, and environments have columns.
    """
    first = frame[is_of_search(frame)]
    return {
        candidate: found.pivot_table("scaled", "value", "env").dropna()
        for candidate in CANDIDATES
        if len(found := first[first["candidate"] == candidate.name])
    }


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
    return [tables.markdown(pd.DataFrame(rows), None), said]


def in_each_environment(frame: pd.DataFrame) -> list[str]:
    """Return a table of what random configurations score in each environment, and say what differs beyond noise."""
    means, said = {}, []
    for env, runs in frame.groupby("env"):
        of_all = {candidate.name: settings[env] for candidate, settings in screened(runs).items()}
        means[env] = {name: estimate(scores.to_numpy()[:, None]) for name, scores in of_all.items()}
        said.append(say_better(f"With a random configuration in {env}", compare_configurations(of_all)))
    return [tables.markdown(pd.DataFrame(means), "objective"), *said] if len(means) > 1 else []


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
    return [tables.markdown(quartiles, "objective"), tables.markdown(rows, "median KL of an update")]


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


def correlate(frame: pd.DataFrame) -> list[str]:
    """Return a table of how scores depend on each hyperparameter, of candidates that have all random configurations."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for candidate, settings in screened(frame).items():
        if len(settings) < SAMPLES:
            continue
        values = pd.DataFrame(candidate.at_random).dropna(axis="columns")
        pairs = zip(*partial_correlations(values.to_numpy(), settings.mean(axis="columns").to_numpy()), strict=True)
        found.update(((candidate.name, name), pair) for name, pair in zip(values, pairs, strict=True))
    if not found:
        return []
    corrected = holm(np.array([p for _, p in found.values()])).tolist()
    cells = [f"{rho:.2f}{' *' * (p <= ALPHA)}" for (rho, _), p in zip(found.values(), corrected, strict=True)]
    table = pd.Series(cells, pd.MultiIndex.from_tuples(found)).unstack(sort=False)
    return [tables.markdown(table, "objective"), DEPENDENCE]


def partial_correlations(values: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank correlation of scores with each value while the others stay the same, and its p value.

    :param values: shape (configurations, hyperparameters)
    :param scores: shape (configurations,)
    """
    precision = np.linalg.inv(spearmanr(np.column_stack([values, scores])).statistic)
    found = -precision[-1, :-1] / np.sqrt(precision[-1, -1] * np.diag(precision)[:-1])
    freedom = len(scores) - values.shape[1] - 1
    return found, 2 * stdtr(freedom, -np.abs(found) * np.sqrt(freedom / (1 - found**2)))


Choice = Callable[[Candidate, pd.DataFrame], pd.Series]


def best_in_each(candidate: Candidate, settings: pd.DataFrame) -> pd.Series:
    """Return the labels of the best configurations, one for each environment."""
    return settings.idxmax().map(lambda number: label_of(candidate, candidate.at_random[int(number)]))


def best_in_all(candidate: Candidate, settings: pd.DataFrame) -> pd.Series:
    """Return the label of the configuration with the best mean of those not held out, the same for each environment."""
    chosen_in = [env for env in settings if env not in HELD_OUT] or [*settings]
    number = settings[chosen_in].mean(axis="columns").idxmax()
    return pd.Series(label_of(candidate, candidate.at_random[int(number)]), settings.columns)


def list_confirmations(frame: pd.DataFrame, files: Sequence[Path]) -> list[str]:
    """Return the commands that run the best random configurations again, with seeds that did not choose them."""
    chosen = [choose(*each) for each in screened(frame).items() for choose in (best_in_each, best_in_all)]
    command = ["python", "-m", "sb3_ppo_variants", "compare", "--preset", "robustness-random"]
    command += ["--seeds", str(1 + FRESH), "--from", *map(str, files), "--out", "runs/robustness"]
    return [
        shlex.join([*command, "--envs", env, "--algos", *dict.fromkeys(labels[env] for labels in chosen)])
        for env in sorted(frame["env"].unique())
    ]


def fresh_scores(frame: pd.DataFrame, labels: pd.Series) -> np.ndarray:
    """Return what configurations score with the seeds that did not choose them, shape (seeds, environments).

    :param labels: a configuration for each environment
    """
    fresh = frame[frame["is_random"] & (frame["seed"] > 0) & (frame["label"] == frame["env"].map(labels))]
    return fresh.pivot_table("scaled", "seed", "env").reindex(columns=labels.index).dropna().to_numpy()


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
    by_default = frame[frame["env"].isin(envs) & ~frame["is_random"] & (frame["changed"] == "")]
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
        said.append(say_better(f"With the defaults {where}", differences(defaults)))
        said.append(say_apart(f"The {name} {where} differs from the default", pairs))
    return [tables.markdown(pd.DataFrame(rows), None), *said]


def say_apart(what: str, pairs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """Say for which candidates two sets of scores differ beyond noise.

    :param what: the first words
    :param pairs: the scores of each candidate, both of shape (seeds, environments)
    """
    corrected = holm(p_values(list(pairs.values())))
    apart = [f"{name} (p = {p:.2g})" for name, p in zip(pairs, corrected, strict=True) if p <= ALPHA]
    return f"{what} beyond noise: {', '.join(apart) or 'of no objective'}."


def say_better(what: str, compared: Differences) -> str:
    """Say which candidates are better than others beyond noise.

    :param what: the first words
    :param compared: the differences of each pair, in both orders
    """
    better = [
        f"{one} is better than {other} (p = {difference.p:.2g})"
        for (one, other), difference in compared.items()
        if difference.is_beyond_noise and difference.estimate.value > 0
    ]
    return f"{what}, beyond noise: {'; '.join(better) or 'no two objectives differ'}."


def curve(frame: pd.DataFrame, candidate: Candidate, name: str) -> dict[float, Estimate]:
    """Return the mean score of a candidate by the value of a hyperparameter, all others having their defaults."""
    own = frame[(frame["candidate"] == candidate.name) & ~frame["is_random"] & frame["changed"].isin(["", name])]
    values = own["value"].where(own["changed"] == name, getattr(candidate.default, name))
    return {value: estimate(by_seed(rows)) for value, rows in own.groupby(values)}


def draw_one_at_a_time(frame: pd.DataFrame, file: Path) -> None:
    """Draw the mean score of each candidate by the value of each hyperparameter, with intervals."""
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


def draw_at_random(frame: pd.DataFrame, file: Path) -> None:
    """Draw scores of random configurations, of the best of some, and by the size of updates, for each environment."""
    envs = sorted(frame["env"].unique())
    names = ("share of configurations with more", "score of the best", "score")
    with drawing(file, len(envs), len(names), (11.0, 0.8 + 2.6 * len(envs))) as grid:
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
                axes.grid(alpha=0.3)
            share.set_title(env)
            size.set_xscale("log")
        for axes, name in zip(grid[-1], ("score", "configurations tried", "median KL of an update"), strict=True):
            axes.set_xlabel(name)


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--from", dest="files", type=Path, nargs="+", default=[RESULTS], help=f"exported records (default: {RESULTS})"
    )
    parser.add_argument(
        "--confirm", action="store_true", help=f"print the commands that run the best again, with {FRESH} fresh seeds"
    )
    parser.add_argument("--pictures", type=Path, help="folder for the pictures, in PNG, SVG and PDF files")


def run(options: argparse.Namespace) -> int:
    """Print the tables, and draw the pictures."""
    found, problems = records.load_records(None, options.files)
    for problem in problems:
        print(problem)
    frame = scaled(found)
    if frame.empty:
        raise ArgumentError("there are no finished runs of --preset robustness or robustness-random in these records")
    blocks, pictures = [EXPLAINED, list_ends(frame), say_cost(found), count_failures(frame)], {}
    if (frame["changed"] != "").any():
        blocks += one_at_a_time(frame)
        pictures["one-at-a-time.png"] = draw_one_at_a_time
    if frame["is_random"].any():
        blocks += [*at_random(frame), *in_each_environment(frame), *by_size(frame), *correlate(frame)]
        blocks += confirmed(frame)
        pictures["at-random.png"] = draw_at_random
    blocks += list_confirmations(frame, options.files) if options.confirm else []
    print("\n\n".join(blocks))
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
        for name, draw in pictures.items():
            draw(frame, options.pictures / name)
    return 0
