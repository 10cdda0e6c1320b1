"""Saving, loading and resuming: crash-safe files that are checked when they are read."""

from sb3_ppo_variants.saving.algorithm import SavedAlgorithm
from sb3_ppo_variants.saving.plain import register_plain

__all__ = ["SavedAlgorithm", "register_plain"]
