"""The RL Zoo with the algorithms and hyperparameters of this package.

Each module is a script of rl_zoo3 with the same options: ``python -m sb3_ppo_variants.zoo.train --algo ppo_clip``.
"""
