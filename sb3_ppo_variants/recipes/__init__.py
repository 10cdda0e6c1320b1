"""Hyperparameters for common PPO environments, and functions to train with them."""

from sb3_ppo_variants.recipes.recipe import (
    ALGORITHMS,
    BASELINES,
    ENVIRONMENT_KEYS,
    PROTOCOLS,
    Protocol,
    Recipe,
    check_registered,
    entries_of,
    full_id,
    parse,
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
    "entries_of",
    "evaluate",
    "full_id",
    "load",
    "parse",
    "recipe",
    "select",
    "train",
]
