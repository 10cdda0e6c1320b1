"""The scores of runs between the ends of their environments, and what can be said of them."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from benchmarks.robustness.candidates import CANDIDATES, Candidate, Configuration
from sb3_ppo_variants.compare.plan import read_setting
from sb3_ppo_variants.compare.records import RANDOM, Record
from sb3_ppo_variants.compare.statistics import Differences, Estimate, interval

# Between these percentiles of the runs in an environment, scores are 0 and 1.
ENDS = (5, 95)


def label_all() -> Iterator[tuple[str, str, float, bool]]:
    """Yield the label of each setting, its candidate, its number among the random ones, and whether it is one."""
    for candidate in CANDIDATES:
        yield label_of(candidate, candidate.default), candidate.name, np.nan, False
        for number, configuration in enumerate(candidate.at_random):
            yield label_of(candidate, configuration), candidate.name, number, True


def label_of(candidate: Candidate, configuration: Configuration) -> str:
    """Return the label of a candidate's runs with a configuration."""
    return read_setting(candidate.setting(configuration)).label


def scaled(found: list[Record]) -> pd.DataFrame:
    """Return a row for each run of the presets, with its score between the ends of its environment.

    A run that failed, or has no score, is as bad as the worst of its environment. The defaults and the random settings
    each leave out environments that not all of them have reached.
    """
    settings = pd.DataFrame(label_all(), columns=["label", "candidate", "number", "is_random"])
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


def screened(frame: pd.DataFrame) -> dict[Candidate, pd.DataFrame]:
    """Return the scores of the random configurations with the first seed, a row for each that has all environments.

    Rows have the numbers of their configurations, which are the same for all candidates, and environments have columns.
    """
    first = frame[is_of_search(frame)]
    return {
        candidate: found.pivot_table("scaled", "number", "env").dropna()
        for candidate in CANDIDATES
        if len(found := first[first["candidate"] == candidate.name])
    }


def by_seed(frame: pd.DataFrame) -> np.ndarray:
    """Return the mean over settings, shape (seeds, environments), for the seeds with most runs."""
    runs = frame.groupby("seed")["label"].transform("size")
    return frame[runs == runs.max()].pivot_table("scaled", "seed", "env").to_numpy()


def estimate(scores: np.ndarray) -> Estimate:
    """Return the mean of scores, shape (seeds, environments), with its interval."""
    low, high = interval(scores)
    return Estimate(scores.mean(), float(low), float(high))


def sensitivity(scores: pd.DataFrame) -> float:
    """Return the best configuration of each environment over the best one of all: mean of max minus max of mean.

    :param scores: a row for each configuration, and a column for each environment
    """
    return float(scores.max().mean() - scores.mean(axis="columns").max())


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
