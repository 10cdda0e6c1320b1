"""What the variants share: arguments, the training loop, logging."""

from sb3_ppo_variants.base.algorithm import PPOBase

__all__ = ["PPOBase"]
