"""Saving, loading and resuming, with files that survive crashes and are checked when they are read."""

from sb3_ppo_variants.saving.plain import register_plain
from sb3_ppo_variants.saving.run import ExactCheckpointCallback, SavedAlgorithm

__all__ = ["ExactCheckpointCallback", "SavedAlgorithm", "register_plain"]
