"""Saving, loading and resuming, with files that survive crashes and are checked when they are read."""

from sb3_ppo_variants.distributions import Beta, Gaussian, SquashedGaussian
from sb3_ppo_variants.limits import ApproximateKL, ExactKL, KLAdaptive, RatioDeviation
from sb3_ppo_variants.losses import ClippedError, Huber, SquaredError
from sb3_ppo_variants.objectives import list_objectives
from sb3_ppo_variants.saving.algorithm import SavedAlgorithm
from sb3_ppo_variants.saving.checkpoint import ExactCheckpointCallback
from sb3_ppo_variants.saving.files import register_plain

__all__ = ["ExactCheckpointCallback", "SavedAlgorithm", "register_plain"]

# Arguments that files store as their fields, without pickle. Parts in higher layers register their own.
register_plain(
    *list_objectives().values(), SquaredError, ClippedError, Huber, ApproximateKL, ExactKL, RatioDeviation, KLAdaptive
)
register_plain(Gaussian, SquashedGaussian, Beta)
