"""Vectorised environments."""

from sb3_ppo_variants.envs.subproc import SafeSubprocVecEnv

__all__ = ["SafeSubprocVecEnv"]
