"""Pictures of the effect of an update on the policy of a two-armed bandit."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from benchmarks.figures.bandit import adapt, ascent, kl, learn, update, value_and_slope
from benchmarks.figures.look import ADAPTIVE, CLIP, FIXED, PLAIN, below, picture, shades
from sb3_ppo_variants.objectives import AdaptiveKL, Clipped, KLPenalized, Objective, Unclipped
from sb3_ppo_variants.objectives.surrogates import TOLERANCE

PROBS = np.linspace(0.02, 0.98, 193)
OLD = 0.5
UPDATES = 6
EPSILONS = (0.1, 0.2, 0.3)
COEFFICIENTS = (0.3, 1.0, 3.0, 10.0)
DESIRED_KL = 0.01
STARTS = (0.01, 1.0, 100.0)
ADAPTATIONS = 12


def _settings(objectives: Sequence[tuple[Objective, str]], palette: str) -> list[tuple[Objective, str, str]]:
    return [(*pair, color) for pair, color in zip(objectives, shades(palette, len(objectives)), strict=True)]


def _draw(file: Path, settings: list[tuple[Objective, str, str]]) -> None:
    """Draw each objective over the probability of the better arm, and that probability over the updates."""
    with picture(file, height=3.9) as grid:
        by_prob, by_update = grid[0]
        for objective, label, color in [(Unclipped(), r"$rA$", PLAIN), *settings]:
            line = "dashed" if color == PLAIN else "solid"
            values = [value_and_slope(objective, OLD, prob)[0] for prob in PROBS]
            by_prob.plot(PROBS, values, color=color, linestyle=line, label=label)
            if color != PLAIN:
                best = update(objective, OLD)
                by_prob.plot(best, value_and_slope(objective, OLD, best)[0], "o", color=color, markersize=6)
            by_update.plot(learn(objective, UPDATES), color=color, linestyle=line, marker="o", markersize=4)
        by_prob.axvline(OLD, color="0.75", linewidth=1, zorder=0)
        by_prob.set(title="one update from 1/2", xlabel="probability of the better arm", ylabel="objective")
        by_prob.set(xlim=(0, 1), ylim=(-1, 1))
        by_update.set(title="update after update", xlabel="updates", ylabel="probability of the better arm")
        by_update.set(ylim=(0.48, 1.02))
        below(by_prob, columns=1 + len(settings))


def clip(file: Path) -> None:
    """Draw the effect of ε."""
    _draw(file, _settings([(Clipped(e), rf"$\epsilon = {e:g}$") for e in EPSILONS], "crest"))


def penalty(file: Path) -> None:
    """Draw the effect of β."""
    _draw(file, _settings([(KLPenalized(kl_coef=b), rf"$\beta = {b:g}$") for b in COEFFICIENTS], "flare"))


def unclipped(file: Path) -> None:
    """Draw how far the steps of one update take the policy, with and without a limit."""
    with picture(file, height=3.9) as grid:
        probability, divergence = grid[0]
        for objective, label, color in (
            (Unclipped(), r"$rA$", PLAIN),
            (KLPenalized(kl_coef=1.0), r"$\beta = 1$", FIXED),
            (Clipped(0.2), r"$\epsilon = 0.2$", CLIP),
        ):
            probs = ascent(objective, OLD)[1:]
            for axes, values in ((probability, probs), (divergence, [kl(OLD, prob) for prob in probs])):
                axes.plot(range(1, len(values) + 1), values, color=color, label=label)
        probability.set(title="probability of the better arm", xlabel="gradient steps of one update", xscale="log")
        divergence.set(title="KL(old || new) in nats", xlabel="gradient steps of one update", xscale="log")
        below(probability, columns=3)


def adaptive(file: Path) -> None:
    """Draw how β adapts from several starts."""
    with picture(file, height=3.9) as grid:
        coefficient, divergence = grid[0]
        for start, color in zip(STARTS, shades("crest", len(STARTS)), strict=True):
            found = adapt(AdaptiveKL(kl_coef=start, desired_kl=DESIRED_KL), ADAPTATIONS)
            for axes, values in zip(grid[0], found, strict=True):
                numbers = range(1, ADAPTATIONS + 1)
                axes.plot(numbers, values, color=color, marker="o", markersize=4, label=rf"first $\beta = {start:g}$")
        _target(divergence, DESIRED_KL)
        coefficient.set(title=r"$\beta$", xlabel="update", yscale="log")
        divergence.set(title="KL after the update", xlabel="update", yscale="log")
        below(coefficient, columns=3)


def _target(axes: Axes, desired_kl: float) -> None:
    """Draw the band of KLs in which β does not change."""
    axes.axhspan(desired_kl / TOLERANCE, desired_kl * TOLERANCE, color=ADAPTIVE, alpha=0.16, linewidth=0)
