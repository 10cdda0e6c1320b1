"""The settings of the comparisons ``robustness`` and ``robustness-random``: defaults, and hyperparameters at random.

All objectives have the same values of the step size, the epochs and the steps of a rollout. Each has values of its own
coefficient besides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

# Random configurations of each objective.
N_RANDOM = 32
# Samples in a minibatch, by which the steps of a rollout are divisible.
MINIBATCH = 64


class Configuration(NamedTuple):
    """Hyperparameters, by default those of Table 3 of the paper."""

    coefficient: float | None
    """That of the objective; ``None`` if it has none."""
    learning_rate: float = 3e-4
    n_epochs: int = 10
    n_steps: int = 2048


VARIED: Mapping[str, tuple[float, ...]] = {
    "learning_rate": (1e-4, 3e-3),
    "n_epochs": (3, 30),
    "n_steps": (512, 8192),
}
"""The ends between which hyperparameters are drawn."""


@dataclass(frozen=True)
class Candidate:
    """An objective whose robustness is measured.

    :param name: its name in tables
    :param algorithm: its algorithm in ``compare``
    :param argument: the argument with its coefficient
    :param values: the ends of the coefficient and, in the middle, its default; none if it has no coefficient
    :param form: how to write the argument with a value
    """

    name: str
    algorithm: str
    argument: str = ""
    values: tuple[float, ...] = ()
    form: str = "{:g}"

    @property
    def default(self) -> Configuration:
        """Its configuration by default."""
        return Configuration(self.values[1] if self.values else None)

    def setting(self, configuration: Configuration) -> str:
        """Write a configuration as on the command line, without what it has by default."""
        coefficient, *others = configuration
        arguments = [] if coefficient is None else [f"{self.argument}={self.form.format(coefficient)}"]
        for name, value, default in zip(VARIED, others, self.default[1:], strict=True):
            if value != default:
                # A step size of its own would not be annealed.
                arguments.append(f"{name}={'lin_' * (name == 'learning_rate')}{value:g}")
        return ":".join([self.algorithm, *([",".join(arguments)] if arguments else [])])

    @cached_property
    def at_random(self) -> list[Configuration]:
        """The same random configurations for all objectives: a Latin hypercube between the ends, on log scales.

        The coefficient of each is as far between the ends of its own values.
        """
        generator = np.random.default_rng(0)
        strata = generator.permuted(np.tile(np.arange(N_RANDOM), (1 + len(VARIED), 1)), axis=1)
        shares = (strata + generator.random(strata.shape)) / N_RANDOM
        ends = [(values[0], values[-1]) for values in (self.values or (1.0,), *VARIED.values())]
        drawn = zip(
            *(low * (high / low) ** of_all for (low, high), of_all in zip(ends, shares, strict=True)), strict=True
        )
        return [
            Configuration(
                float(f"{coefficient:.2g}") if self.values else None,
                float(f"{learning_rate:.2g}"),
                round(n_epochs),
                MINIBATCH * round(n_steps / MINIBATCH),
            )
            for coefficient, learning_rate, n_epochs, n_steps in drawn
        ]


CANDIDATES = (
    Candidate("clipping", "ppo_clip", "clip_range", (0.05, 0.2, 0.5)),
    Candidate("adaptive KL", "ppo_adaptive_kl", "desired_kl", (0.001, 0.01, 0.1)),
    Candidate("fixed KL", "ppo_fixed_kl", "kl_coef", (0.1, 1, 10)),
    Candidate("SPO", "ppo_custom", "objective", (0.05, 0.2, 0.5), "SPO({:g})"),
    Candidate("no limit", "ppo_unclipped"),
)
