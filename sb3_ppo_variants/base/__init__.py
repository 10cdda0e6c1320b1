"""The base class of all variants: arguments, training loop, logging."""

from sb3_ppo_variants.base.algorithm import PPOBase

__all__ = ["PPOBase"]
