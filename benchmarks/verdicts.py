"""Measure by simulation how often reports find differences that do not exist, and how often their intervals cover."""

import argparse
from collections.abc import Callable, Iterable
from itertools import combinations, cycle, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.measuring import count, make_folder, reported, write
from sb3_ppo_variants.compare import statistics

RESULTS = Path("results/verdicts.json")
SETTINGS, SEEDS, ENVS = (2, 5, 12), (3, 5, 10), (1, 3, 7)
# Differences of the first setting from the others, in standard deviations of a run.
GAPS = (1, 2)
# Scores with mean 0 and standard deviation 1.
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "skewed": lambda generator, shape: 1 - generator.exponential(size=shape),
    "heavy-tailed": lambda generator, shape: generator.standard_t(3, size=shape) / np.sqrt(3),
}
SEEDS_COVERED = (2, 3, 4, 5, 7, 10)
# The seeds of two settings with the same mean, of which the second varies more by this factor.
SEEDS_OF_BOTH = ((5, 5), (10, 10), (3, 10), (10, 3))
MORE = 4
RESAMPLES = 400
# The intervals that reports show, and others of the mean.
SHOWN, OTHERS = ("mean", "difference", "P(better)"), ("t", "percentile", "studentised")
CALLED = {"0": "equal, called equivalent", "1": "a margin apart, called equivalent"}


def spreads(envs: int) -> np.ndarray:
    """Return the standard deviations of runs in the environments, which differ by a factor of 4."""
    return np.geomspace(0.05, 0.2, envs) if envs > 1 else np.array([0.1])


def draw(generator: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return scores around 0.5, of a shape whose second axis is that of the environments."""
    scale = spreads(shape[1]).reshape(1, -1, *[1] * (len(shape) - 2))
    return 0.5 + scale * DISTRIBUTIONS[kind](generator, shape)


def found(settings: int, seeds: int, envs: int, gap: float, cases: int) -> tuple[float, float]:
    """Return how often any of the settings that are the same are told apart, and how often the first from the second.

    Cases take turns with the distributions.

    :param gap: difference of the first setting from the others, in standard deviations of a run
    """
    generator = np.random.default_rng([settings, seeds, envs, int(gap)])
    wrong = right = 0
    for kind in islice(cycle(DISTRIBUTIONS), cases):
        scores = {str(number): draw(generator, kind, (seeds, envs)) for number in range(settings)}
        scores["0"] += gap * spreads(envs)
        differences = statistics.differences(scores)
        same = combinations(list(scores)[1 if gap else 0 :], 2)
        wrong += any(differences[pair].is_beyond_noise for pair in same)
        right += differences["0", "1"].is_beyond_noise
    return wrong / cases, right / cases


def found_by_spread(kind: str, seeds: int, of_wider: int, envs: int, cases: int) -> float:
    """Return how often two settings with the same mean are told apart, of which the second varies more."""
    generator = np.random.default_rng([seeds, of_wider, envs, *kind.encode()])
    wrong = 0
    for _ in range(cases):
        narrow, wide = draw(generator, kind, (seeds, envs)), draw(generator, kind, (of_wider, envs))
        scores = {"0": 0.5 + (narrow - 0.5) / MORE, "1": wide}
        wrong += statistics.differences(scores)["0", "1"].is_beyond_noise
    return wrong / cases


def equivalent(seeds: int, envs: int, gap: float, cases: int) -> float:
    """Return how often two settings are called equivalent whose means differ by ``gap`` margins."""
    generator = np.random.default_rng([seeds, envs, int(gap)])
    pairs = (
        (draw(generator, kind, (seeds, envs)), draw(generator, kind, (seeds, envs)) + gap * statistics.MARGIN)
        for kind in islice(cycle(DISTRIBUTIONS), cases)
    )
    return sum(statistics.are_equivalent(own, other) for own, other in pairs) / cases


def coverage(kind: str, seeds: int, envs: int, cases: int) -> dict[str, float | None]:
    """Return how often each interval contains the true value, ``None`` for those that reports do not show.

    Of the last three intervals of the mean, reports show none.
    """
    generator = np.random.default_rng([seeds, envs, *kind.encode()])
    own, better = (draw(generator, kind, (seeds, envs, cases)) for _ in range(2))
    better += spreads(envs)[:, None]
    many, many_better = (draw(generator, kind, (100_000, envs)) for _ in range(2))
    probability = float((many_better + spreads(envs) > many).mean())
    pairs = zip(np.moveaxis(better, -1, 0), np.moveaxis(own, -1, 0), strict=True)
    probabilities = [statistics.probability_of_improvement(*pair) for pair in pairs]
    mean, half = own.mean(axis=(0, 1)), statistics.half_width([own], 0.95)
    shown = {
        "mean": _inside(statistics.interval(own), 0.5),
        "difference": _inside(statistics.interval(better, own), float(spreads(envs).mean())),
        "P(better)": _inside(np.array([(each.low, each.high) for each in probabilities]).T, probability),
    }
    return {
        **{name: share if statistics.are_enough(seeds, envs) else None for name, share in shown.items()},
        "t": _inside((mean - half, mean + half), 0.5),
        **_of_bootstraps(generator, own),
    }


def _inside(ends: Iterable[np.ndarray], truth: float) -> float:
    low, high = ends
    return float(((low <= truth) & (truth <= high)).mean())


def _of_bootstraps(generator: np.random.Generator, own: np.ndarray) -> dict[str, float]:
    """Return how often two intervals of the bootstrap over the seeds of each environment contain the mean."""
    means, errors = [], []
    for _ in range(RESAMPLES):
        chosen = generator.integers(len(own), size=own.shape[:2])
        again = np.take_along_axis(own, chosen[..., None], axis=0)
        means.append(again.mean(axis=(0, 1)))
        errors.append(_error(again))
    mean, error = own.mean(axis=(0, 1)), _error(own)
    # A resample of equal seeds has no error, and is left out.
    ratios = np.where(np.array(errors) > 1e-12, (np.array(means) - mean) / np.maximum(errors, 1e-12), np.nan)
    low, high = np.nanpercentile(ratios, [2.5, 97.5], axis=0)
    return {
        "percentile": _inside(np.percentile(means, [2.5, 97.5], axis=0), 0.5),
        "studentised": _inside((mean - high * error, mean - low * error), 0.5),
    }


def _error(own: np.ndarray) -> np.ndarray:
    return np.sqrt((own.var(axis=0, ddof=1) / len(own)).sum(axis=0)) / own.shape[1]


def simulate(cases: int) -> dict[str, Any]:
    """Return the shares of all kinds of cases."""
    told = []
    for settings, seeds, envs in product(SETTINGS, SEEDS, ENVS):
        wrong = found(settings, seeds, envs, 0, cases)[0]
        # Power needs less precision than an error of 5%.
        power = {str(gap): found(settings, seeds, envs, gap, max(cases // 5, 1))[1] for gap in GAPS}
        told.append({"settings": settings, "seeds": seeds, "envs": envs, "wrong": wrong, "power": power})
    covered = [
        {"kind": kind, "seeds": seeds, "envs": envs, **coverage(kind, seeds, envs, cases)}
        for kind, seeds, envs in product(DISTRIBUTIONS, SEEDS_COVERED, ENVS)
    ]
    same = [
        {"seeds": seeds, "envs": envs, **{str(gap): equivalent(seeds, envs, gap, cases) for gap in (0, 1)}}
        for seeds, envs in product(SEEDS, ENVS)
    ]
    by_spread = [
        {
            "seeds": seeds, "of wider": of_wider, "envs": envs,
            **{kind: found_by_spread(kind, seeds, of_wider, envs, cases) for kind in DISTRIBUTIONS},
        }
        for (seeds, of_wider), envs in product(SEEDS_OF_BOTH, ENVS)
    ]  # fmt: skip
    return {"cases": cases, "told apart": told, "by spread": by_spread, "covered": covered, "equivalent": same}


def tables(shares: dict[str, Any]) -> str:
    """Return the shares as tables in Markdown."""
    told = pd.DataFrame(
        {
            "settings": each["settings"], "seeds": each["seeds"], "environments": each["envs"],
            "false difference": f"{each['wrong']:.1%}",
            **{f"{gap} sd found": f"{share:.0%}" for gap, share in each["power"].items()},
        }
        for each in shares["told apart"]
    )  # fmt: skip
    names = {"of wider": "seeds of the wider", "envs": "environments"}
    by_spread = pd.DataFrame(shares["by spread"]).rename(columns=names)
    covered = pd.DataFrame(shares["covered"]).rename(columns={"kind": "scores", "envs": "environments"})
    shown = covered.groupby(["seeds", "environments"], sort=False)[[*SHOWN, *OTHERS]].min()
    same = pd.DataFrame(shares["equivalent"]).rename(columns={"envs": "environments", **CALLED})
    return "\n\n".join(
        [
            told.to_markdown(index=False, disable_numparse=True),
            _percentages(by_spread),
            _percentages(shown.reset_index()),
            _percentages(same),
        ]
    )


def _percentages(frame: pd.DataFrame) -> str:
    cells = frame.map(lambda value: value if isinstance(value, int) else "" if pd.isna(value) else f"{value:.1%}")
    return cells.to_markdown(index=False, disable_numparse=True)


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this simulation."""
    parser.add_argument("--cases", type=count, default=1000, help="cases of each kind (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for the shares (default: %(default)s)")
    parser.add_argument("--report", type=Path, help="print the tables of such a file, without simulating")


def run(options: argparse.Namespace) -> int:
    """Simulate, write the shares to a file, and print tables of them."""
    if options.report is None:
        make_folder(options.json)
        shares = simulate(options.cases)
        write(shares, options.json)
    else:
        shares = reported(options.report, "told apart", "by spread", "covered", "equivalent")
    print(tables(shares))
    return 0
