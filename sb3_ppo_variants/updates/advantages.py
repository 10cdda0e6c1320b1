"""How advantages are normalised."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import torch as th

from sb3_ppo_variants.losses import ADVANTAGE_EPSILON
from sb3_ppo_variants.objectives.objective import Numbers
from sb3_ppo_variants.processes import ALONE, Processes
from sb3_ppo_variants.processes.advantages import moments_together

# True is "minibatch", which is what SB3 does.
NormalizeAdvantage: TypeAlias = bool | Literal["minibatch", "rollout"]


def over_rollout(
    advantages: np.ndarray, normalize: NormalizeAdvantage, processes: Processes = ALONE
) -> Callable[[Numbers], Numbers]:
    """What normalises advantages with the mean and the standard deviation of a whole rollout, as OpenAI Baselines does.

    :param advantages: those of the rollout, which stay as they are
    :param normalize: anything but ``"rollout"`` leaves all advantages as they are
    :param processes: those whose rollouts are normalised as one
    :return: a function of any of the advantages, on any device
    """
    if normalize != "rollout":
        return lambda given: given
    mean, scale = float(advantages.mean()), float(advantages.std() + ADVANTAGE_EPSILON)
    if processes.size > 1:
        mean, scale = moments_together(th.from_numpy(advantages), processes)
    return lambda given: (given - mean) / scale


def in_minibatches(normalize: NormalizeAdvantage) -> bool:
    """Whether the advantages of each minibatch are normalised."""
    return bool(normalize and normalize != "rollout")
