"""Hyperparameters of :class:`~sb3_ppo_variants.PPOCustom`, to which you add your ``objective``."""

from sb3_ppo_variants.recipes.environments import unclipped

hyperparams = unclipped()
