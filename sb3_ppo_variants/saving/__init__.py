"""Saving, loading and resuming, with files that survive crashes and are checked when they are read."""

from sb3_ppo_variants.saving.algorithm import SavedAlgorithm
from sb3_ppo_variants.saving.plain import register_plain

__all__ = ["SavedAlgorithm", "register_plain"]
