"""Normalised advantages of minibatches and rollouts that processes share."""

import torch as th

from sb3_ppo_variants.losses import ADVANTAGE_EPSILON
from sb3_ppo_variants.processes.processes import Processes


def normalized_together(advantages: th.Tensor, processes: Processes) -> th.Tensor:
    """What :func:`sb3_ppo_variants.losses.normalize_advantages` makes of minibatches whose rows all processes share.

    :param advantages: the rows that this process has of each minibatch, shape ``(..., rows)``
    :return: normalised by the mean and the standard deviation of the rows of all processes, of the same shape
    """
    rows = advantages.shape[-1]
    mean = advantages.mean(dim=-1)
    squares = ((advantages - mean[..., None]) ** 2).sum(dim=-1)
    means, all_squares = processes.gather(th.stack([mean, squares])).unbind(dim=1)
    mean = means.mean(dim=0)
    variance = (all_squares + rows * (means - mean) ** 2).sum(dim=0) / (processes.size * rows - 1)
    return (advantages - mean[..., None]) / (variance.sqrt()[..., None] + ADVANTAGE_EPSILON)


def moments_together(advantages: th.Tensor, processes: Processes) -> tuple[float, float]:
    """The mean of the advantages of all processes, as many in each, and what to divide by: their standard deviation."""
    variance, mean = th.var_mean(advantages.double(), correction=0)
    variances, means = processes.gather(th.stack([variance, mean])).unbind(dim=1)
    together = means.mean()
    spread = (variances + (means - together) ** 2).mean().sqrt()
    return together.item(), spread.item() + ADVANTAGE_EPSILON
