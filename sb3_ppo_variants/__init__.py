"""The policy objectives of the PPO paper (https://arxiv.org/abs/1707.06347) for Stable-Baselines3."""

from stable_baselines3.ppo import CnnPolicy, MlpPolicy, MultiInputPolicy

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
from sb3_ppo_variants.system import get_system_info
from sb3_ppo_variants.updates import SeparateUpdates
from sb3_ppo_variants.variants import PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, PPOUnclipped

__version__ = "1.0.0rc1"
__all__ = [
    "ArgumentError",
    "ArrayObjective",
    "Batch",
    "CallbackError",
    "CnnPolicy",
    "DamagedFileError",
    "EnvOutputError",
    "ExactCheckpointCallback",
    "Gradient",
    "MissingKLError",
    "MlpPolicy",
    "MultiInputPolicy",
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
    "get_system_info",
    "init_processes",
    "register_kl",
]
