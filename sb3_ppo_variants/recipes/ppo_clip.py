"""Hyperparameters of :class:`~sb3_ppo_variants.PPOClip`: those that were tuned for PPO."""

from sb3_ppo_variants.recipes.environments import clipped

hyperparams = clipped()
