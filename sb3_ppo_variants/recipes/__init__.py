"""Hyperparameters for the environments that a user of PPO starts with, and what to make of them."""

from sb3_ppo_variants.recipes.recipe import ALGORITHMS, Recipe, parse, recipe, schedule
from sb3_ppo_variants.recipes.training import evaluate, load, train

__all__ = ["ALGORITHMS", "Recipe", "evaluate", "load", "parse", "recipe", "schedule", "train"]
