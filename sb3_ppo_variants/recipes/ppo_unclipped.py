"""Hyperparameters of :class:`~sb3_ppo_variants.PPOUnclipped`, whose objective adds none of its own."""

from sb3_ppo_variants.recipes.environments import unclipped

hyperparams = unclipped()
