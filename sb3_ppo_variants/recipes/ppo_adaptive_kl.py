"""Hyperparameters of :class:`~sb3_ppo_variants.PPOAdaptiveKL`, with the best target of the paper's Table 1."""

from sb3_ppo_variants.recipes.environments import unclipped

hyperparams = unclipped(desired_kl=0.01)
