"""The policy objectives of the PPO paper (https://arxiv.org/abs/1707.06347) for Stable-Baselines3."""

from sb3_ppo_variants.callbacks import ExactCheckpointCallback
from sb3_ppo_variants.errors import (
    ArgumentError,
    CallbackError,
    DamagedFileError,
    EnvOutputError,
    NonFiniteError,
    OtherClassError,
    PickledValueError,
    ProcessError,
    WorkerError,
)
from sb3_ppo_variants.kl import MissingKLError, register_kl
from sb3_ppo_variants.objectives import ArrayObjective, Batch, Gradient, Objective, check_gradient
from sb3_ppo_variants.processes import init_processes
from sb3_ppo_variants.updates import SeparateUpdates
from sb3_ppo_variants.variants import PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, PPOUnclipped

__version__ = "0.1.0"
__all__ = [
    "ArgumentError",
    "ArrayObjective",
    "Batch",
    "CallbackError",
    "DamagedFileError",
    "EnvOutputError",
    "ExactCheckpointCallback",
    "Gradient",
    "MissingKLError",
    "NonFiniteError",
    "Objective",
    "OtherClassError",
    "PPOAdaptiveKL",
    "PPOClip",
    "PPOCustom",
    "PPOFixedKL",
    "PPOUnclipped",
    "PickledValueError",
    "ProcessError",
    "SeparateUpdates",
    "WorkerError",
    "check_gradient",
    "init_processes",
    "register_kl",
]
