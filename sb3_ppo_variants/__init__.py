"""The policy objectives of the PPO paper (https://arxiv.org/abs/1707.06347) for Stable-Baselines3."""

from sb3_ppo_variants.base import ArgumentError
from sb3_ppo_variants.envs import SafeSubprocVecEnv
from sb3_ppo_variants.guards import CallbackError, EnvOutputError, NonFiniteError, WorkerError
from sb3_ppo_variants.kl import MissingKLError, register_kl
from sb3_ppo_variants.variants import PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped

__version__ = "0.1.0"
__all__ = [
    "ArgumentError",
    "CallbackError",
    "EnvOutputError",
    "MissingKLError",
    "NonFiniteError",
    "PPOAdaptiveKL",
    "PPOClip",
    "PPOFixedKL",
    "PPOUnclipped",
    "SafeSubprocVecEnv",
    "WorkerError",
    "register_kl",
]
