"""Hyperparameters of :class:`~sb3_ppo_variants.PPOUnclipped`, whose objective has none of its own."""

from sb3_ppo_variants.recipes.environments import unclipped

hyperparams = unclipped()
