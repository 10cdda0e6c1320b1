"""Hyperparameters of :class:`~sb3_ppo_variants.PPOFixedKL`, with the best coefficient of the paper's Table 1."""

from sb3_ppo_variants.recipes.environments import unclipped

hyperparams = unclipped(kl_coef=3.0)
