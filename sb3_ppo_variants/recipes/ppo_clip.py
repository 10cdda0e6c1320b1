"""Hyperparameters of :class:`~sb3_ppo_variants.PPOClip`, which are those that PPO was tuned with."""

from sb3_ppo_variants.recipes.environments import clipped

hyperparams = clipped()
