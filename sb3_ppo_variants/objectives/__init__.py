"""The policy objectives, each with its equation, its loss on tensors and its gradient over arrays."""

from sb3_ppo_variants.objectives.checking import check_gradient
from sb3_ppo_variants.objectives.clipping import CISPO, ESPO, ClipHigher, DualClip, Rollback, TrulyPPO
from sb3_ppo_variants.objectives.ewma import EWMA
from sb3_ppo_variants.objectives.naming import list_objectives, read_objective
from sb3_ppo_variants.objectives.objective import (
    ArrayObjective,
    Batch,
    Gradient,
    NativeObjective,
    Objective,
    gradient_of,
    has_term,
    is_given_with_loss,
)
from sb3_ppo_variants.objectives.penalties import MDPO, AdaptiveReverseKL, KLHinge, ReverseKL
from sb3_ppo_variants.objectives.smooth import DPO, P3O, SAPO, SPO
from sb3_ppo_variants.objectives.surrogates import AdaptiveKL, Clipped, KLPenalized, Unclipped
from sb3_ppo_variants.objectives.trust_region import TRGPPO

__all__ = [
    "CISPO",
    "DPO",
    "ESPO",
    "EWMA",
    "MDPO",
    "P3O",
    "SAPO",
    "SPO",
    "TRGPPO",
    "AdaptiveKL",
    "AdaptiveReverseKL",
    "ArrayObjective",
    "Batch",
    "ClipHigher",
    "Clipped",
    "DualClip",
    "Gradient",
    "KLHinge",
    "KLPenalized",
    "NativeObjective",
    "Objective",
    "ReverseKL",
    "Rollback",
    "TrulyPPO",
    "Unclipped",
    "check_gradient",
    "gradient_of",
    "has_term",
    "is_given_with_loss",
    "list_objectives",
    "read_objective",
]
