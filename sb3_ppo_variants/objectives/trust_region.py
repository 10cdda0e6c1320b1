"""Trust region-guided clipping: a range of r for each state and action, from a bound of the KL.

The distributions of the policies are exponential families. Of all distributions whose KL from the old one is at most
delta, the one with the greatest probability of an action, and the one with the least, are on a line through the old
one: their mean statistics are (1 - w) E_old[T] + w T(a), with w > 0 for the greatest and w < 0 for the least, and the
KL grows with |w|. So each end of the range is found by a search for one number, w.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.distributions import Distribution

from sb3_ppo_variants.arguments import NON_NEGATIVE, POSITIVE
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.objectives.objective import Batch, NativeObjective, Rules

# Arrays with one row per sample. NumPy's stubs do not know that sums over dimensions are arrays.
Rows: TypeAlias = Any
OfWeight: TypeAlias = Callable[[Rows], Rows]
# The most steps of a search; it usually takes five.
STEPS = 60
# The radius that the authors' code has for discrete actions.
DISCRETE_DELTA = 0.001
# How far log pi_old(a|s) may be from the one of the distribution that the range is computed for.
ROUNDING = 1e-3
# How many actions are drawn to find out whether the range is known.
TRIED = 100
TINY = 1e-12


@dataclass(frozen=True)
class TRGPPO(NativeObjective):
    """Trust Region-Guided PPO, https://arxiv.org/abs/1901.10314: E[min(r A, clip(r, l, u) A)].

    For each state and action, l and u are the least and the greatest r(a|s) of all policies with
    KL(old || new) <= delta in the state, or 1 - eps and 1 + eps if those are further apart. Unlikely actions get a
    wider range than likely ones. The authors approximate the range of Gaussians with a table; here it is exact. It is
    known for all distributions of SB3 and sb3-contrib, but not if actions are squashed through tanh. As in SB3,
    ``train/clip_fraction`` counts abs(r - 1) > eps, so that fewer samples are clipped.

    :param clip_range: eps, >= 0, the least distance of l and u from 1
    :param delta: the bound of the KL in a state, in nats, > 0. By default, it is 0.001 for discrete actions, as in the
        authors' code. For Gaussians with d dimensions, it is d / 2 ((1 + eps)^(2/d) - 1 - 2/d log(1 + eps)), with which
        the range of the mean action ends at 1 + eps
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed, and by a model if its actions come
        from another distribution
    """

    term: ClassVar[str] = "CLIPPED_BY_STATE"
    numbers_per_sample: ClassVar[int] = 2
    needs_kl: ClassVar[bool] = True
    rules: ClassVar[Rules] = {"clip_range": NON_NEGATIVE, "delta": POSITIVE.or_none()}
    clip_range: float = 0.2
    delta: float | None = None

    def check_distribution(self, distribution: Distribution) -> None:
        """Check that the range is known, on many actions: others have the right log-probability of a few, too.

        :raises ArgumentError: if it is not
        """
        parameters = divergences_of(distribution).parameters(distribution)
        old_parameters = tuple(each.repeat_interleave(TRIED, dim=0).cpu().numpy() for each in parameters)
        drawn = [distribution.sample() for _ in range(TRIED)]
        log_probs = th.cat([distribution.log_prob(actions) for actions in drawn])
        line_through(old_parameters, th.cat(drawn).cpu().numpy(), log_probs.cpu().numpy())

    @property
    def constants(self) -> Sequence[float]:
        """Empty: both ends of the range are numbers of each sample."""
        return ()

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[min(r A, clip(r, l, u) A)]."""
        low, high = batch.over_rollout(self.per_sample).to(batch.ratio).T
        return -th.min(batch.advantages * batch.ratio, batch.advantages * th.clamp(batch.ratio, low, high)).mean()

    def per_sample(self, rollout: Batch) -> th.Tensor:
        """Return the ends of the range of each sample, shape ``(rows, 2)``."""
        old_parameters = tuple(each.cpu().numpy() for each in rollout.old_parameters)
        line = line_through(old_parameters, rollout.actions.cpu().numpy(), rollout.old_log_prob.cpu().numpy())
        least, greatest = range_of_ratio(line, self.delta if self.delta else line.default_delta(self.clip_range))
        ends = np.minimum(least, 1 - self.clip_range), np.maximum(greatest, 1 + self.clip_range)
        return th.from_numpy(np.stack(ends, axis=1))


class Line(NamedTuple):
    """The distributions between the old one and an action, as functions of w, which has the shape ``(batch,)``."""

    log_ratio: OfWeight
    """log r of the action."""
    kl: OfWeight
    """KL(old || new)."""
    slope: OfWeight
    """The derivative of the KL."""
    start: Rows
    """The derivative of log r at w = 0, which is the second derivative of the KL, too."""
    lowest: Rows
    """The bound of w < 0, at which the KL is infinite; that of w > 0 is 1."""
    default_delta: Callable[[float], float]
    """The bound of the KL that belongs to an eps."""


def range_of_ratio(line: Line, delta: float) -> tuple[Rows, Rows]:
    """Find the least and the greatest ratio of the action's probability where the KL is at most delta.

    Newton's method solves sqrt(2 KL(w)) = sqrt(2 delta), which is nearly linear, and bisection takes over where it
    leaves the interval.
    """
    if delta == 0:  # Where the KL is 0, its slope is 0 too.
        return np.ones_like(line.start), np.ones_like(line.start)
    wanted = np.sqrt(2 * delta)
    ratios = []
    for sign, bound in ((-1, line.lowest), (1, np.ones_like(line.start))):
        inner, outer = np.zeros_like(bound), bound * (1 - TINY)
        w = np.clip(sign * wanted / np.sqrt(line.start), np.minimum(inner, outer) / 2, np.maximum(inner, outer) / 2)
        for _ in range(STEPS):
            distance = np.sqrt(2 * np.maximum(line.kl(w), TINY**2))
            inner, outer = np.where(distance < wanted, w, inner), np.where(distance < wanted, outer, w)
            step = w - (distance - wanted) * distance / line.slope(w)
            inside = (step - inner) * (step - outer) < 0
            last, w = w, np.where(inside, step, (inner + outer) / 2)
            if np.all(np.abs(w - last) <= 1e-13 * np.abs(w)):
                break
        ratios.append(np.exp(line.log_ratio(w)))
    return ratios[0], ratios[1]


def line_through(old_parameters: tuple[Rows, ...], actions: Rows, old_log_prob: Rows) -> Line:
    """Find the line for the distribution from which actions were drawn.

    Its family is that whose log-probabilities of the actions are those of the rollout.

    :param old_parameters: as :mod:`sb3_ppo_variants.kl` defines them
    :param actions: shape ``(batch, action_dim)``
    :param old_log_prob: shape ``(batch,)``
    :raises ArgumentError: if there is none
    """
    actions = actions.reshape(len(old_log_prob), -1).astype(np.float64)
    parameters = [array.astype(np.float64) for array in old_parameters]
    if len(parameters) == 2 and parameters[0].shape == parameters[1].shape == actions.shape:
        mean, std = parameters
        if np.all(std > 0):
            z = (actions - mean) / std
            log_prob = -(z**2 / 2 + np.log(std) + np.log(2 * np.pi) / 2).sum(axis=1)
            if np.allclose(log_prob, old_log_prob, ROUNDING, ROUNDING):
                return line_of_gaussian(z**2)
    for log_probs in _log_probs_of_outcomes(parameters, actions):
        if np.allclose(log_probs.sum(axis=1), old_log_prob, ROUNDING, ROUNDING):
            return line_of_outcomes(np.exp(log_probs))
    raise ArgumentError(
        "objective: TRGPPO does not know the distribution of these actions; it knows Gaussians that are not squashed, "
        "categorical and Bernoulli distributions, and hybrid actions of discrete parts that always count"
    )


def _log_probs_of_outcomes(parameters: list[Rows], actions: Rows) -> Iterator[Rows]:
    """Compute the log-probability of each dimension, for each way to divide them among categories and coins.

    The logits of categories belong to one dimension, and those of coins to one each.
    """
    if not parameters or len(parameters) > actions.shape[1]:
        if not parameters and not actions.shape[1]:
            yield actions
        return
    logits, *others = parameters
    coins, outcome = actions[:, : logits.shape[1]], actions[:, 0].astype(np.int64)
    ways = []
    if np.all((outcome >= 0) & (outcome < logits.shape[1])):
        highest = logits.max(axis=1, keepdims=True)
        log_probs = logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
        ways.append(np.take_along_axis(log_probs, outcome[:, None], axis=1))
    if coins.shape == logits.shape:
        ways.append(-np.logaddexp(0, np.where(coins == 1, -1, 1) * logits))
    for first in ways:
        for rest in _log_probs_of_outcomes(others, actions[:, first.shape[1] :]):
            yield np.concatenate([first, rest], axis=1)


def line_of_gaussian(z2: Rows) -> Line:
    """Find the line of a Gaussian with independent dimensions.

    In units of the old standard deviation, the new mean is w z and the new variance (1 - w)(1 + w z^2).

    :param z2: z^2 = ((a - mean) / std)^2, shape ``(batch, action_dim)``
    """
    n_dims = z2.shape[1]

    def variance(w: Rows) -> Rows:
        return (1 - w[:, None]) * (1 + w[:, None] * z2)

    def log_ratio(w: Rows) -> Rows:
        w_ = w[:, None]
        return (z2 / 2 * w_ * (1 + z2) / (1 + w_ * z2) - np.log(variance(w)) / 2).sum(axis=1)

    def kl(w: Rows) -> Rows:
        v = variance(w)
        return ((np.log(v) + (1 + w[:, None] ** 2 * z2) / v - 1) / 2).sum(axis=1)

    def slope(w: Rows) -> Rows:
        w_, v = w[:, None], variance(w)
        d_v = z2 - 1 - 2 * w_ * z2
        return ((d_v + 2 * w_ * z2 - (1 + w_**2 * z2) * d_v / v) / v / 2).sum(axis=1)

    def default_delta(clip_range: float) -> float:
        log = 2 / n_dims * np.log1p(clip_range)
        return float(n_dims / 2 * (np.expm1(log) - log))

    start = (z2 + (z2 - 1) ** 2 / 2).sum(axis=1)
    return Line(log_ratio, kl, slope, start, -1 / np.maximum(z2.max(axis=1), TINY), default_delta)


def line_of_outcomes(probs: Rows) -> Line:
    """Find the line of independent discrete distributions.

    The probability of the outcome that was drawn is multiplied by 1 + w (1 - p) / p, and those of the others by 1 - w.

    :param probs: p of the outcome in each dimension, shape ``(batch, action_dim)``
    """
    p = np.clip(probs, 1e-30, 1 - TINY)
    odds = (1 - p) / p

    def log_ratio(w: Rows) -> Rows:
        return np.log1p(w[:, None] * odds).sum(axis=1)

    def kl(w: Rows) -> Rows:
        return -(p * np.log1p(w[:, None] * odds) + (1 - p) * np.log1p(-w[:, None])).sum(axis=1)

    def slope(w: Rows) -> Rows:
        w_ = w[:, None]
        return ((1 - p) * (1 / (1 - w_) - 1 / (1 + w_ * odds))).sum(axis=1)

    return Line(log_ratio, kl, slope, odds.sum(axis=1), -1 / odds.max(axis=1), lambda _: DISCRETE_DELTA)
