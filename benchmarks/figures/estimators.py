"""Measure how estimates of the KL from the actions taken compare with the exact KL, during training."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import torch as th

from benchmarks.figures.rollout import Moved, moved
from benchmarks.measuring import circumstances, count, make_folder, reported, write
from sb3_ppo_variants.objectives.surrogates import adapt_kl_coef
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.recipes import build, recipe
from sb3_ppo_variants.variants import PPOAdaptiveKL, PPOClip

RESULTS = Path("results/kl-estimators.json")
ENV = "Hopper-v5"
TIMESTEPS = 50_000
MINIBATCH = 64
DESIRED_KL = 0.01
NAMES = ("exact", "k1", "k2", "k3")


class Measured(TypedDict):
    """The measurements of one run: lists with a value for each update, in dicts with a list for each name."""

    algorithm: str
    seed: int
    kl_coef: list[float]
    """beta in each update; empty if the objective has none."""
    means: dict[str, list[float]]
    """The mean of each estimate over the rollout."""
    deviations: dict[str, list[float]]
    """The standard deviation of the mean of a minibatch."""
    agreements: dict[str, list[float]]
    """The share of minibatches on which the rule for beta makes the same decision as with the rollout's exact KL."""


def estimates(samples: Moved) -> dict[str, np.ndarray]:
    """Return the exact KL and its estimates of http://joschu.net/blog/kl-approx.html, each of shape ``(samples,)``."""
    log_ratio = samples.log_ratio
    values = (samples.kl, -log_ratio, 0.5 * log_ratio**2, np.expm1(log_ratio) - log_ratio)
    return dict(zip(NAMES, values, strict=True))


def decision(kl: float) -> float:
    """Return the factor by which the rule of section 4 of the paper multiplies beta: 1/2, 1 or 2."""
    return adapt_kl_coef(1.0, kl, DESIRED_KL)


class _AfterUpdate(PPOBase):
    """Measures the estimates after each update."""

    measured: Measured

    def train(self) -> None:
        """Update the policy, and measure."""
        coefficient: float | None = getattr(self, "kl_coef", None)
        super().train()
        if coefficient is not None:
            self.measured["kl_coef"].append(coefficient)
        rng = np.random.default_rng(self.num_timesteps)
        for name, values in estimates(moved(self)).items():
            minibatches = rng.permutation(values).reshape(-1, MINIBATCH).mean(axis=1)
            if name == NAMES[0]:
                right = decision(float(values.mean()))
            agreement = np.mean([decision(float(kl)) == right for kl in minibatches])
            numbers = {"means": values.mean(), "deviations": minibatches.std(ddof=1), "agreements": agreement}
            for what, number in numbers.items():
                cast(Any, self.measured)[what].setdefault(name, []).append(float(f"{number:.4g}"))


class _Clip(_AfterUpdate, PPOClip):
    """Equation 7 of the paper."""


class _AdaptiveKL(_AfterUpdate, PPOAdaptiveKL):
    """Equation 8 of the paper, with the adaptive beta of section 4."""


ALGORITHMS: dict[str, type[_AfterUpdate]] = {"ppo_clip": _Clip, "ppo_adaptive_kl": _AdaptiveKL}


def measure(algorithm: str, seed: int, timesteps: int = TIMESTEPS) -> Measured:
    """Train in Hopper with the paper's Table 3 and normalised observations and rewards, and return the measurements."""
    made = replace(recipe(algorithm, ENV, entry="mujoco"), algorithm=ALGORITHMS[algorithm])
    model = cast(_AfterUpdate, build(made, seed))
    model.measured = Measured(algorithm=algorithm, seed=seed, kl_coef=[], means={}, deviations={}, agreements={})
    model.learn(timesteps)
    return model.measured


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--seeds", type=count, default=3, help="number of seeds, from 0 up (default: %(default)s)")
    parser.add_argument("--timesteps", type=count, default=TIMESTEPS, help="steps of each run (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for the measurements (default: %(default)s)")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without measuring")


def run(options: argparse.Namespace) -> int:
    """Measure, write the measurements to a file, and print a table."""
    th.set_num_threads(1)
    if options.report is None:
        make_folder(options.json)
        runs = [measure(name, seed, options.timesteps) for name in ALGORITHMS for seed in range(options.seeds)]
        found = {**circumstances(), "env": ENV, "timesteps": options.timesteps, "runs": runs}
        write(found, options.json)
    else:
        runs = reported(options.report, "timesteps", "runs")["runs"]
    print("\n".join(table(runs)))
    return 0


def table(runs: list[Measured]) -> list[str]:
    """Return a table with a row for each estimate: medians, and the mean agreement, over all updates of all seeds."""
    lines = [
        "| training | estimate | distance from the exact KL | noise of a minibatch | same decision on β |",
        "|---|---|---|---|---|",
    ]
    for algorithm in ALGORITHMS:
        of = [run for run in runs if run["algorithm"] == algorithm]
        exact = _all(of, "means", NAMES[0])
        for name in NAMES:
            off = np.median(np.abs(_all(of, "means", name) / exact - 1))
            noise = np.median(_all(of, "deviations", name) / exact)
            agreement = _all(of, "agreements", name).mean()
            lines.append(f"| `{algorithm}` | {name} | {off:.0%} | {noise:.0%} | {agreement:.0%} |")
    return lines


def _all(runs: list[Measured], what: str, name: str) -> np.ndarray:
    return np.concatenate([cast(Any, run)[what][name] for run in runs])
