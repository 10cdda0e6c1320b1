"""The objectives and their gradients as functions of the ratio, as in figure 1 of the paper."""

from pathlib import Path

import numpy as np
import torch as th
from matplotlib.axes import Axes

from benchmarks.figures.look import ADAPTIVE, CLIP, FIXED, PLAIN, below, picture, shades
from sb3_ppo_variants.objectives import Batch, Clipped, KLPenalized, Objective, Unclipped

RATIO = np.linspace(0.01, 1.99, 397)
EPSILON = 0.2
COEFFICIENTS = (0.3, 1.0, 3.0, 10.0)
# Probability of the action taken. There are only two actions, so its ratio alone determines the KL.
OLD_PROB = 0.5


def by_ratio(
    objective: Objective, ratio: np.ndarray, advantage: float, old_prob: float = OLD_PROB
) -> tuple[np.ndarray, np.ndarray]:
    """Return an objective, and its derivative with respect to log r, for one sample at each ratio.

    The policy chooses between two actions, and the old policy took the one of the sample with probability ``old_prob``.
    """
    samples = [_sample(objective, r, advantage, old_prob) for r in ratio]
    return np.array([value for value, _ in samples]), np.array([slope for _, slope in samples])


def _sample(objective: Objective, ratio: float, advantage: float, old_prob: float) -> tuple[float, float]:
    """Evaluate an objective in a minibatch of one sample."""
    log_ratio = th.tensor([np.log(ratio)], dtype=th.float64, requires_grad=True)
    prob = old_prob * log_ratio.exp()
    log_ratio_of_other = th.log((1 - prob) / (1 - old_prob))
    batch: Batch = Batch(
        log_ratio.exp(),
        th.tensor([advantage], dtype=th.float64),
        -old_prob * log_ratio - (1 - old_prob) * log_ratio_of_other,
        reverse_kl=prob * log_ratio + (1 - prob) * log_ratio_of_other,
        log_ratio=log_ratio,
        old_log_prob=th.tensor([np.log(old_prob)], dtype=th.float64),
        actions=th.zeros(1, 1),
        old_parameters=(th.tensor(np.log([[old_prob, 1 - old_prob]])),),
    )
    loss = objective.loss(batch)
    (slope,) = th.autograd.grad(loss, log_ratio)
    return -loss.item(), -slope.item()


def _draw(grid: np.ndarray, objective: Objective, label: str, color: str, **line: object) -> None:
    for column, advantage in enumerate((1.0, -1.0)):
        for row, values in enumerate(by_ratio(objective, RATIO, advantage)):
            grid[row, column].plot(RATIO, values, color=color, label=label, **line)


def _finish(grid: np.ndarray, low: float, high: float) -> None:
    for column, advantage in enumerate((1, -1)):
        of, slope = grid[0, column], grid[1, column]
        of.set_title(f"$A = {advantage}$")
        slope.set_xlabel("$r$")
        limits = (low, high) if advantage > 0 else (-high, -low)
        of.set_ylim(*((-0.05, 2.05) if advantage > 0 else (-2.05, 0.05)))
        slope.set_ylim(*limits)
        for axes in (of, slope):
            axes.set_xlim(0, 2)
            axes.axvline(1, color="0.75", linewidth=1, zorder=0)
            axes.plot([1], [advantage], "o", color="0.2", markersize=5, zorder=5)
    grid[0, 0].set_ylabel("objective")
    grid[1, 0].set_ylabel(r"derivative in $\log r$")


def _bounds(axes: Axes) -> None:
    for bound, text in ((1 - EPSILON, r"$1-\epsilon$"), (1 + EPSILON, r"$1+\epsilon$")):
        axes.axvline(bound, color="0.75", linewidth=1, linestyle="dotted", zorder=0)
        axes.annotate(text, (bound, axes.get_ylim()[0]), xytext=(3, 5), textcoords="offset points", color="0.35")


def clip(file: Path) -> None:
    """Draw the clipped objective together with the unclipped one."""
    with picture(file, rows=2, height=5.6) as grid:
        _draw(grid, Unclipped(), r"$r A$", PLAIN, linestyle="dashed", linewidth=1.6)
        _draw(grid, Clipped(EPSILON), rf"$\min(r A,\ \mathrm{{clip}}(r)\,A)$, $\epsilon = {EPSILON}$", CLIP)
        _finish(grid, -0.05, 2.05)
        for axes in grid.ravel():
            _bounds(axes)
        below(grid[0, 0], columns=2)


def unclipped(file: Path) -> None:
    """Draw the unclipped objective."""
    with picture(file, rows=2, height=5.2) as grid:
        _draw(grid, Unclipped(), r"$r A$", PLAIN)
        _finish(grid, -0.05, 2.05)


def penalty(file: Path) -> None:
    """Draw the penalised objective with several coefficients."""
    with picture(file, rows=2, height=5.6) as grid:
        _draw(grid, Unclipped(), r"$r A$", PLAIN, linestyle="dashed", linewidth=1.6)
        for coefficient, color in zip(COEFFICIENTS, shades("flare", len(COEFFICIENTS)), strict=True):
            _draw(grid, KLPenalized(kl_coef=coefficient), rf"$\beta = {coefficient:g}$", color)
        _finish(grid, -2.05, 2.05)
        below(grid[0, 0], columns=5)


def penalty_and_clip(file: Path) -> None:
    """Draw the objective that is both clipped and penalised."""
    with picture(file, rows=2, height=5.6) as grid:
        _draw(grid, Clipped(EPSILON), rf"clipped, $\epsilon = {EPSILON}$", CLIP, linestyle="dashed", linewidth=1.6)
        _draw(grid, KLPenalized(kl_coef=1.0), r"penalty, $\beta = 1$", FIXED, linestyle="dashed", linewidth=1.6)
        _draw(grid, KLPenalized(kl_coef=1.0, clip_range=EPSILON), "both", ADAPTIVE)
        _finish(grid, -1.05, 2.05)
        below(grid[0, 0], columns=3)


def overview(file: Path) -> None:
    """Draw the objectives side by side."""
    drawn: list[tuple[Objective, str, str]] = [
        (Unclipped(), "unclipped", PLAIN),
        (KLPenalized(kl_coef=1.0), r"KL penalty, $\beta = 1$", FIXED),
        (Clipped(EPSILON), rf"clipped, $\epsilon = {EPSILON}$", CLIP),
    ]
    with picture(file, height=3.5) as grid:
        for axes, advantage in zip(grid[0], (1.0, -1.0), strict=True):
            for objective, label, color in drawn:
                axes.plot(RATIO, by_ratio(objective, RATIO, advantage)[0], color=color, label=label)
            axes.plot([1], [advantage], "o", color="0.2", markersize=5, zorder=5)
            axes.set(title=f"$A = {advantage:g}$", xlabel="$r$", xlim=(0, 2))
            axes.set_ylim(*((-0.05, 2.05) if advantage > 0 else (-2.05, 0.05)))
        grid[0, 0].set_ylabel("objective of one sample")
        below(grid[0, 0], columns=3)
