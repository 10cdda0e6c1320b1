"""Hyperparameters for common PPO environments, and functions to train with them."""

from sb3_ppo_variants.recipes.recipe import (
    ALGORITHMS,
    BASELINES,
    ENVIRONMENT_KEYS,
    PROTOCOLS,
    Protocol,
    Recipe,
    check_registered,
    check_skipped_frames,
    entries_of,
    full_id,
    make_exact_vec_env,
    parse,
    read_value,
    recipe,
    select,
)
from sb3_ppo_variants.recipes.training import evaluate, load, train

__all__ = [
    "ALGORITHMS",
    "BASELINES",
    "ENVIRONMENT_KEYS",
    "PROTOCOLS",
    "Protocol",
    "Recipe",
    "check_registered",
    "check_skipped_frames",
    "entries_of",
    "evaluate",
    "full_id",
    "load",
    "make_exact_vec_env",
    "parse",
    "read_value",
    "recipe",
    "select",
    "train",
]
