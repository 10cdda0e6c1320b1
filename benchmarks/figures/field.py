"""The objectives of the field and their gradients as functions of the ratio, beside those of the paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.figures.look import ADAPTIVE, CLIP, FIXED, PLAIN, below, picture, shades
from benchmarks.figures.ratio import EPSILON, by_ratio
from sb3_ppo_variants.objectives import (
    CISPO,
    DPO,
    MDPO,
    P3O,
    SAPO,
    SPO,
    TRGPPO,
    ClipHigher,
    Clipped,
    DualClip,
    KLHinge,
    KLPenalized,
    Objective,
    ReverseKL,
    Rollback,
    TrulyPPO,
    Unclipped,
)
from sb3_ppo_variants.objectives.trust_region import Line, line_of_gaussian, line_of_outcomes, range_of_ratio

POINTS = 200
# So unlikely that an action can become four times as likely.
UNLIKELY = 0.249


class Curve(NamedTuple):
    """How an objective is drawn."""

    objective: Objective
    label: str
    color: str
    dashed: bool = False


NO_LIMIT = Curve(Unclipped(), r"$r A$", PLAIN, dashed=True)
PPO = Curve(Clipped(EPSILON), rf"clipped, $\epsilon = {EPSILON}$", PLAIN, dashed=True)


def _drawn(file: Path, curves: Sequence[Curve], *, to: float, low: float, high: float) -> None:
    """Draw the gain over the old policy in the upper row, and its derivative with respect to log r in the lower one.

    :param to: the end of the axis of r
    :param low: the lower end of the axis of derivatives where A = 1, and the upper end where A = -1, times -1
    :param high: the other end
    """
    ratio = np.linspace(0.01, to - 0.01, POINTS)
    old_prob = 0.5 if to <= 2 else UNLIKELY
    with picture(file, rows=2, height=5.6) as grid:
        for column, advantage in enumerate((1.0, -1.0)):
            for objective, label, color, dashed in curves:
                style: Any = {"color": color, "label": label}
                style |= {"linestyle": "dashed", "linewidth": 1.6} if dashed else {}
                values, slopes = by_ratio(objective, ratio, advantage, old_prob)
                at_old, _ = by_ratio(objective, np.ones(1), advantage, old_prob)
                grid[0, column].plot(ratio, values - at_old, **style)
                grid[1, column].plot(ratio, slopes, **style)
            gain, slope = grid[:, column]
            gain.set(title=f"$A = {advantage:g}$", ylim=(-1.05, high - 1) if advantage > 0 else (1 - high, 1.05))
            slope.set(xlabel="$r$", ylim=(low, high) if advantage > 0 else (-high, -low))
            for axes, at_one in ((gain, 0), (slope, advantage)):
                axes.set_xlim(0, to)
                axes.axvline(1, color="0.75", linewidth=1, zorder=0)
                axes.plot([1], [at_one], "o", color="0.2", markersize=5, zorder=5)
        grid[0, 0].set_ylabel("gain over the old policy")
        grid[1, 0].set_ylabel(r"derivative in $\log r$")
        below(grid[0, 0], columns=4 if len(curves) == 4 else 3)


def quadratic(file: Path) -> None:
    """Draw SPO with several ranges."""
    ranges = (0.1, 0.2, 0.4)
    curves = [
        Curve(SPO(eps), rf"SPO, $\epsilon = {eps}$", color)
        for eps, color in zip(ranges, shades("crest", 3), strict=True)
    ]
    _drawn(file, [PPO, *curves], to=2, low=-2.05, high=2.05)


def clips(file: Path) -> None:
    """Draw the clips with more than one bound."""
    curves = [
        Curve(ClipHigher(), r"higher, $\epsilon_{high} = 0.28$", ADAPTIVE),
        Curve(DualClip(), "dual, $c = 3$", FIXED),
        PPO._replace(color=CLIP),  # On top, as it is the same as one of the others in most places.
    ]
    _drawn(file, curves, to=4, low=-0.05, high=4.05)


def weights(file: Path) -> None:
    """Draw the objective that clips the weights of samples."""
    capped = Curve(CISPO(), r"CISPO, $\epsilon_{high} = 0.28$", CLIP)
    _drawn(file, [NO_LIMIT, PPO._replace(color=FIXED), capped], to=3, low=-0.05, high=3.05)


def rollback(file: Path) -> None:
    """Draw the rollbacks by ratio and by KL."""
    by_kl = Curve(TrulyPPO(), r"Truly PPO, $\delta = 0.03$, $\alpha = 5$", FIXED)
    _drawn(file, [PPO, Curve(Rollback(), r"rollback, $\alpha = 0.3$", CLIP), by_kl], to=2, low=-2.05, high=2.05)


def gates(file: Path) -> None:
    """Draw the soft gates."""
    with_kl = Curve(P3O(), r"P3O, $\tau = 4$, $\beta = 0.1$", FIXED)
    without = Curve(SAPO(), r"SAPO, $\tau = 1$ and $1.05$", CLIP)
    _drawn(file, [NO_LIMIT, PPO._replace(color=ADAPTIVE), with_kl, without],
           to=4, low=-0.55, high=2.55)  # fmt: skip


def drift(file: Path) -> None:
    """Draw the objective with the discovered drift."""
    _drawn(file, [NO_LIMIT, PPO._replace(color=ADAPTIVE), Curve(DPO(), r"DPO, $\alpha = 2$, $\beta = 0.6$", CLIP)],
           to=4, low=-0.55, high=2.05)  # fmt: skip


def hinge(file: Path) -> None:
    """Draw the penalty with a hinge beside the one without."""
    plain = Curve(KLPenalized(kl_coef=1.0), r"KL penalty, $\beta = 1$", FIXED)
    hinged = Curve(KLHinge(), r"hinge, $\beta = 1$, $\eta = 1000$", CLIP)
    _drawn(file, [NO_LIMIT, plain, hinged], to=2, low=-2.05, high=2.05)


def reverse(file: Path) -> None:
    """Draw the penalty on the reverse KL beside the one on the KL."""
    curves = [
        Curve(KLPenalized(kl_coef=3.0), r"KL, $\beta = 3$", PLAIN, dashed=True),
        Curve(MDPO(1.0), "reverse KL, $t = 1$", ADAPTIVE),
        Curve(ReverseKL(3.0), r"reverse KL, $\beta = 3$", CLIP),
        Curve(MDPO(0.1), "reverse KL, $t = 0.1$", FIXED),
    ]
    _drawn(file, curves, to=2, low=-2.05, high=2.05)


def ranges(file: Path) -> None:
    """Draw the ranges of Trust Region-Guided PPO, by the old probability of an action and by its distance."""
    probs, distance = np.linspace(0.005, 0.9, POINTS), np.linspace(0.01, 3, POINTS)
    discrete, gaussian = line_of_outcomes(probs[:, None]), line_of_gaussian(distance[:, None] ** 2)
    with picture(file, height=3.4) as grid:
        left, right = grid[0]
        _plot_range(left, probs, discrete, [(0.001, ADAPTIVE), (0.01, CLIP), (0.03, FIXED)])
        left.set(title="two actions", xlabel=r"$\pi_{old}(a \mid s)$", ylabel="range of $r$", xlim=(0, 0.9))
        delta = gaussian.default_delta(EPSILON)
        _plot_range(right, distance, gaussian, [(0.001, ADAPTIVE), (0.01, CLIP), (delta, FIXED)])
        right.set(title="one Gaussian dimension", xlabel=r"$|a - \mu| / \sigma$", xlim=(0, 3))
        below(right, columns=3)


def _plot_range(axes: Any, where: np.ndarray, line: Line, deltas: Sequence[tuple[float, str]]) -> None:
    axes.axhspan(1 - EPSILON, 1 + EPSILON, color="0.9", zorder=0)
    for delta, color in deltas:
        least, greatest = range_of_ratio(line, delta)
        axes.plot(where, greatest, color=color, label=rf"$\delta = {delta:.3g}$")
        axes.plot(where, least, color=color)
    axes.set_ylim(0, 4)


# Every objective once, in the order of the overview.
ALL = {
    "Unclipped": Unclipped(),
    "Clipped": Clipped(EPSILON),
    "ClipHigher": ClipHigher(),
    "DualClip": DualClip(),
    "CISPO": CISPO(),
    "Rollback": Rollback(),
    "TrulyPPO": TrulyPPO(),
    r"TRGPPO, $\delta = 0.1$": TRGPPO(delta=0.1),
    "SPO": SPO(),
    "P3O": P3O(),
    "SAPO": SAPO(),
    "DPO": DPO(),
    r"KLPenalized, $\beta = 1$": KLPenalized(kl_coef=1.0),
    "KLHinge": KLHinge(),
    r"ReverseKL, $\beta = 3$": ReverseKL(),
    "MDPO, $t = 1$": MDPO(),
}


def gradients(file: Path) -> None:
    """Draw the derivatives of all objectives side by side."""
    ratio = np.linspace(0.01, 3.99, POINTS)
    with picture(file, rows=4, columns=4, height=7.6, sharey=True) as grid:
        for axes, (label, objective) in zip(grid.ravel(), ALL.items(), strict=True):
            for advantage, color in ((1.0, CLIP), (-1.0, FIXED)):
                axes.plot(ratio, advantage * ratio, color=PLAIN, linestyle="dotted", linewidth=1.2)
                slopes = by_ratio(objective, ratio, advantage, UNLIKELY)[1]
                axes.plot(ratio, slopes, color=color, linewidth=1.8, label=f"$A = {advantage:g}$")
            axes.set(xlim=(0, 4), ylim=(-3.2, 3.2))
            axes.set_title(label)
        for axes in grid[-1]:
            axes.set_xlabel("$r$")
        for axes in grid[:-1].ravel():
            axes.set_xticklabels([])
        grid[0, 0].get_figure().supylabel(r"derivative in $\log r$", fontsize="medium")
        below(grid[0, 0], columns=2)
