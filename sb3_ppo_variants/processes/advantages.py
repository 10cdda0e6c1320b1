"""Normalises the advantages of minibatches and rollouts that are distributed over several processes."""

import math

import torch as th

from sb3_ppo_variants.losses import ADVANTAGE_EPSILON
from sb3_ppo_variants.processes.processes import Processes


def normalized_together(advantages: th.Tensor, processes: Processes) -> th.Tensor:
    """Normalise minibatches distributed over processes as :func:`sb3_ppo_variants.losses.normalize_advantages` does.

    :param advantages: the rows of each minibatch in this process, shape ``(..., rows)``
    :return: advantages normalised by the mean and standard deviation over all processes, of the same shape
    """
    rows = advantages.shape[-1]
    mean = advantages.mean(dim=-1)
    squares = ((advantages - mean[..., None]) ** 2).sum(dim=-1)
    means, all_squares = processes.gather(th.stack([mean, squares])).unbind(dim=1)
    mean = means.mean(dim=0)
    variance = (all_squares + rows * (means - mean) ** 2).sum(dim=0) / (processes.size * rows - 1)
    return (advantages - mean[..., None]) / (variance.sqrt()[..., None] + ADVANTAGE_EPSILON)


def moments_together(advantages: th.Tensor, processes: Processes) -> tuple[float, float]:
    """Return the mean of the advantages of all processes, and the divisor: their standard deviation plus an epsilon.

    All processes must have the same number of advantages.
    """
    mean, variance = mean_and_variance(advantages, processes)
    return mean, math.sqrt(variance) + ADVANTAGE_EPSILON


def mean_and_variance(numbers: th.Tensor, processes: Processes) -> tuple[float, float]:
    """Return the mean and the variance of the numbers of all processes, each of which has the same number of them."""
    variance, mean = th.var_mean(numbers.double(), correction=0)
    variances, means = processes.gather(th.stack([variance, mean])).unbind(dim=1)
    together = means.mean()
    return together.item(), (variances + (means - together) ** 2).mean().item()
