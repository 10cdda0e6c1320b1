"""The check that the gradient of an objective over arrays is that of its loss."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch as th

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.losses import check_loss
from sb3_ppo_variants.objectives.objective import DERIVED, ArrayObjective, Batch, Objective, gradient_of, has_gradient

# The grid: log r, and the advantages, both KLs and entropies at each. It contains r = 1 and a KL of 0, and otherwise no
# round numbers, at which objectives may have kinks.
SIDE = np.linspace(0.013, 6, 120)
LOG_RATIOS = np.concatenate([-SIDE[::-1], [0.0], SIDE])
ADVANTAGES = [sign * size for size in (0.011, 0.37, 1.3, 3.1, 9.7) for sign in (-1, 1)]
KLS = (0.0, 1.3e-4, 0.013, 0.17, 1.1, 9.3)
STATES = np.array([(a, kl, kl, s) for a, kl, s in product([0.0, *ADVANTAGES], KLS, (-0.7, 2.3))])
MIXED = 500
RELATIVE, ABSOLUTE = 1e-7, 1e-12
# Kinks are found to 0.05 / 2 ** HALVINGS, and compared at this distance, in log r.
HALVINGS = 30
BESIDE = 1e-9


def check_gradient(objective: ArrayObjective, seed: int = 0) -> None:
    """Compare ``objective.gradient`` with autograd through ``objective.loss``, to test an objective of your own.

    The comparison begins where each update does, at r = 1 and a KL of 0. It goes on over a grid: r from e^-6 to e^6,
    advantages of both signs and several sizes, KLs from 0 to 10, and entropies of both signs. Where the derivative
    jumps, it compares both sides of the kink closely. Everything is in double precision.

    :param objective: the objective
    :param seed: seed of further samples, which mix all of these in a minibatch
    :raises AssertionError: if the loss or a derivative differs by more than rounding, naming it and the sample
    :raises ArgumentError: (a ``ValueError``) if the objective has no gradient that belongs to its loss, or if the loss
        or a derivative has another shape than in training
    """
    if not has_gradient(objective):
        raise ArgumentError(f"objective={objective!r} has no gradient to compare with its loss: implement gradient()")
    _compare_start(objective)
    for log_ratio in LOG_RATIOS:
        _compare(objective, Points(np.full(len(STATES), log_ratio), *STATES.T))
    on_grid = Points(np.repeat(LOG_RATIOS, len(STATES)), *np.tile(STATES.T, len(LOG_RATIOS)))
    beside_kinks = _beside_kinks(objective, on_grid)
    if len(beside_kinks.log_ratio):
        _compare(objective, beside_kinks)
    rng = np.random.default_rng(seed)
    mixed = rng.choice(len(on_grid.log_ratio), MIXED)
    _compare(objective, Points(*(array[mixed] * rng.uniform(0.9, 1.1, MIXED) for array in on_grid)))


class Points(NamedTuple):
    """The data of a minibatch, each of shape ``(batch,)``."""

    log_ratio: np.ndarray
    advantages: np.ndarray
    kl: np.ndarray
    reverse_kl: np.ndarray
    entropy: np.ndarray


class Derived(NamedTuple):
    """A loss, shape ``()``, and its derivatives, shape ``(batch,)``."""

    loss: np.ndarray
    d_log_ratio: np.ndarray
    d_kl: np.ndarray
    d_reverse_kl: np.ndarray
    d_entropy: np.ndarray


def _known(objective: Objective, samples: Points) -> dict[str, np.ndarray]:
    known = samples._asdict()
    return known if objective.needs_kl else {name: known[name] for name in ("log_ratio", "advantages", "entropy")}


def _by_autograd(objective: Objective, samples: Points) -> Derived:
    known = {name: th.from_numpy(array) for name, array in _known(objective, samples).items()}
    variables = {name: known[name].requires_grad_() for name in DERIVED if name in known}
    loss = objective.loss(Batch(source=known.get))
    check_loss(loss, objective, "policy")
    # If the loss does not depend on a variable, its gradient is None.
    found = th.autograd.grad(loss, [*variables.values()], allow_unused=True)
    slopes = dict(zip(variables, found, strict=True))
    return _derived(loss.detach().numpy(), samples, [slopes.get(name) for name in DERIVED])


def _by_hand(objective: ArrayObjective, samples: Points) -> Derived:
    losses, *slopes = gradient_of(objective, Batch(source=_known(objective, samples).get))
    return _derived(losses.mean(), samples, slopes)


def _derived(loss: np.ndarray, samples: Points, slopes: Sequence[np.ndarray | th.Tensor | None]) -> Derived:
    zeros = np.zeros_like(samples.kl)
    return Derived(np.asarray(loss), *(zeros if slope is None else np.asarray(slope) for slope in slopes))


def _compare_start(objective: ArrayObjective) -> None:
    """Compare where each update begins: the new policy is the old one."""
    for advantage in (-1.0, 1.0):
        start = Points(np.zeros(1), np.full(1, advantage), np.zeros(1), np.zeros(1), np.ones(1))
        steps = (start, *(start._replace(log_ratio=np.full(1, step)) for step in (-BESIDE, BESIDE)))
        expected, below, above = (_by_autograd(objective, samples).d_log_ratio.item() for samples in steps)
        found = _by_hand(objective, start).d_log_ratio.item()
        # Where there is no kink, the comparison over the grid names the mistake.
        if not np.isclose(found, expected, RELATIVE, ABSOLUTE) and not np.isclose(below, above, 1e-6):
            raise AssertionError(
                f"gradient() returns d_log_ratio = {found:.3g} at r = 1, A = {advantage:g}, where each update begins, "
                f"but autograd returns {expected:.3g}. The loss has a kink there, with derivatives {below:.3g} and "
                f"{above:.3g} on its sides. Return {expected:.3g} where r == 1, or the two paths differ from the first "
                "step on"
            )


def _compare(objective: ArrayObjective, samples: Points) -> None:
    expected, found = _by_autograd(objective, samples), _by_hand(objective, samples)
    for name in (*Derived._fields[1:], "loss"):
        own, other = getattr(found, name), getattr(expected, name)
        differ = np.flatnonzero(~np.isclose(own, other, RELATIVE, ABSOLUTE, equal_nan=True))
        if len(differ):
            i = differ[0]
            at = f"r = {np.exp(samples.log_ratio[i]):.6g}"
            if name != "loss":
                at += f", A = {samples.advantages[i]:.3g}, KL = {samples.kl[i]:.3g}"
            what = "the mean of losses" if name == "loss" else name
            raise AssertionError(
                f"{what} is not that of the loss: at {at}, it is {own.flat[i]:.9g} instead of {other.flat[i]:.9g}"
            )


def _beside_kinks(objective: Objective, grid: Points) -> Points:
    """Pick samples on both sides of each kink between neighbours in the grid."""
    one = len(STATES)
    low, high = (Points(*(array[part] for array in grid)) for part in (slice(None, -one), slice(one, None)))
    at_low, at_high = (_by_autograd(objective, side).d_log_ratio for side in (low, high))
    for _ in range(HALVINGS):
        middle = low._replace(log_ratio=(low.log_ratio + high.log_ratio) / 2)
        at_middle = _by_autograd(objective, middle).d_log_ratio
        in_low = np.abs(at_middle - at_low) > np.abs(at_high - at_middle)
        high = high._replace(log_ratio=np.where(in_low, middle.log_ratio, high.log_ratio))
        low = low._replace(log_ratio=np.where(in_low, low.log_ratio, middle.log_ratio))
        at_low, at_high = np.where(in_low, at_low, at_middle), np.where(in_low, at_middle, at_high)
    jumps = np.abs(at_high - at_low) > 1e-4 * np.maximum(np.abs(at_low), np.abs(at_high))
    below, above = low.log_ratio[jumps] - BESIDE, high.log_ratio[jumps] + BESIDE
    return Points(np.append(below, above), *(np.tile(array[jumps], 2) for array in low[1:]))
