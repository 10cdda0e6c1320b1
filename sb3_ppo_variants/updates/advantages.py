"""Normalisation of advantages."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import torch as th

from sb3_ppo_variants.losses import ADVANTAGE_EPSILON
from sb3_ppo_variants.objectives.objective import Numbers
from sb3_ppo_variants.processes import ALONE, Processes
from sb3_ppo_variants.processes.advantages import moments_together

# True means "minibatch", as in SB3.
NormalizeAdvantage: TypeAlias = bool | Literal["minibatch", "rollout"]


def over_rollout(
    advantages: np.ndarray, normalize: NormalizeAdvantage, processes: Processes = ALONE
) -> Callable[[Numbers], Numbers]:
    """Return a function that normalises advantages over a whole rollout, as OpenAI Baselines does.

    It uses the mean and the standard deviation of all advantages in the rollout.

    :param advantages: the advantages of the rollout, which are not modified
    :param normalize: with any value except ``"rollout"``, the function leaves advantages unchanged
    :param processes: the processes whose rollouts are normalised as one
    :return: a function that can be applied to any of the advantages, on any device
    """
    if normalize != "rollout":
        return lambda given: given
    mean, scale = float(advantages.mean()), float(advantages.std() + ADVANTAGE_EPSILON)
    if processes.size > 1:
        mean, scale = moments_together(th.from_numpy(advantages), processes)
    return lambda given: (given - mean) / scale


def in_minibatches(normalize: NormalizeAdvantage) -> bool:
    """Return whether advantages are normalised in each minibatch."""
    return bool(normalize and normalize != "rollout")
