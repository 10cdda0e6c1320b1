"""The policy objectives of the PPO paper, each with its equation, its loss on tensors and its gradient over arrays."""

from sb3_ppo_variants.objectives.checking import check_gradient
from sb3_ppo_variants.objectives.ewma import EWMA
from sb3_ppo_variants.objectives.naming import list_objectives, read_objective
from sb3_ppo_variants.objectives.objective import (
    ArrayObjective,
    Batch,
    Gradient,
    NativeObjective,
    Objective,
    gradient_of,
    is_given_with_loss,
    loss_of,
)
from sb3_ppo_variants.objectives.surrogates import AdaptiveKL, Clipped, KLPenalized, Unclipped

__all__ = [
    "EWMA",
    "AdaptiveKL",
    "ArrayObjective",
    "Batch",
    "Clipped",
    "Gradient",
    "KLPenalized",
    "NativeObjective",
    "Objective",
    "Unclipped",
    "check_gradient",
    "gradient_of",
    "is_given_with_loss",
    "list_objectives",
    "loss_of",
    "read_objective",
]
