"""Measure the surrogate objectives between a policy and its first update, as in figure 2 of the paper."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
import torch as th
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.figures.rollout import moved
from benchmarks.measuring import circumstances, count, make_folder, write
from sb3_ppo_variants.objectives import Batch, Clipped, KLPenalized, Objective, Unclipped
from sb3_ppo_variants.recipes import build, recipe
from sb3_ppo_variants.variants import PPOClip

RESULTS = Path("results/interpolation.json")
ENV = "Hopper-v5"
EPSILON = 0.2
# 0 is the policy that collected the rollout, 1 the updated one.
FACTORS = np.round(np.linspace(0.0, 2.0, 41), 2)
OBJECTIVES: dict[str, Objective] = {
    "unclipped": Unclipped(),
    "clip": Clipped(EPSILON),
    "kl_coef=0.3": KLPenalized(kl_coef=0.3),
    "kl_coef=1": KLPenalized(kl_coef=1.0),
    "kl_coef=3": KLPenalized(kl_coef=3.0),
}


class Line(TypedDict):
    """The measurements with one seed: by name, a value for each of ``FACTORS``."""

    seed: int
    values: dict[str, list[float]]


class AlongTheLine(PPOClip):
    """Measures the objectives on the line through the old and the updated parameters, after each update."""

    values: dict[str, list[float]]

    def train(self) -> None:
        """Update the policy, and measure along the line."""
        old = parameters_to_vector(self.policy.parameters()).detach().clone()
        super().train()
        new = parameters_to_vector(self.policy.parameters()).detach().clone()
        self.values = {}
        for factor in FACTORS:
            self._move(old + float(factor) * (new - old))
            for name, value in measured(self).items():
                self.values.setdefault(name, []).append(float(f"{value:.5g}"))
        self._move(new)

    def _move(self, parameters: th.Tensor) -> None:
        with th.no_grad():
            vector_to_parameters(parameters, self.policy.parameters())


def measured(model: PPOClip) -> dict[str, float]:
    """Return the mean KL, each objective, and E[clip(r) A] without the minimum, all over the rollout."""
    samples = moved(model)
    ratio = np.exp(samples.log_ratio)
    batch: Batch = Batch(*map(th.from_numpy, (ratio, samples.advantages, samples.kl)))
    values = {name: -objective.loss(batch).item() for name, objective in OBJECTIVES.items()}
    without_minimum = np.clip(ratio, 1 - EPSILON, 1 + EPSILON) * samples.advantages
    return {**values, "clip without minimum": float(without_minimum.mean()), "kl": float(samples.kl.mean())}


def line(seed: int) -> Line:
    """Measure one update of a new policy, with the paper's Table 3 and the protocol ``text``."""
    made = replace(recipe("ppo_clip", ENV, protocol="text"), algorithm=AlongTheLine)
    model = cast(AlongTheLine, build(made, seed))
    model.learn(model.n_steps)
    return {"seed": seed, "values": model.values}


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--seeds", type=count, default=5, help="number of seeds, from 0 up (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for the measurements (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Measure, and write the file that the ``figures`` command draws."""
    th.set_num_threads(1)
    make_folder(options.json)
    lines = [line(seed) for seed in range(options.seeds)]
    found = {**circumstances(), "env": ENV, "factors": FACTORS.tolist(), "lines": lines}
    write(found, options.json)
    print(f"Measured {options.seeds} updates: {options.json}")
    return 0
