"""The policy objectives of the PPO paper (https://arxiv.org/abs/1707.06347) for Stable-Baselines3."""

from pathlib import Path

from stable_baselines3.common import utils
from stable_baselines3.ppo import CnnPolicy, MlpPolicy, MultiInputPolicy

from sb3_ppo_variants import distributions, evaluation
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
from sb3_ppo_variants.limits import ApproximateKL, EarlyStop, ExactKL, KLAdaptive, RatioDeviation
from sb3_ppo_variants.losses import ClippedError, Huber, SquaredError, ValueLoss
from sb3_ppo_variants.objectives import Batch, Objective
from sb3_ppo_variants.processes import init_processes
from sb3_ppo_variants.saving import ExactCheckpointCallback
from sb3_ppo_variants.separate import SeparateUpdates
from sb3_ppo_variants.variants import PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, PPOUnclipped

__version__ = "1.0.0"
__all__ = [
    "ApproximateKL", "ArgumentError", "Batch", "CallbackError", "ClippedError", "CnnPolicy", "DamagedFileError",
    "EarlyStop", "EnvOutputError", "ExactCheckpointCallback", "ExactKL", "Huber", "KLAdaptive", "MissingKLError",
    "MlpPolicy", "MultiInputPolicy", "NonFiniteError", "Objective", "OtherClassError", "PPOAdaptiveKL", "PPOClip",
    "PPOCustom", "PPOFixedKL", "PPOUnclipped", "PickledValueError", "ProcessError", "RatioDeviation",
    "SeparateUpdates", "SquaredError", "ValueLoss", "WorkerError", "distributions", "evaluation", "get_system_info",
    "init_processes", "register_kl",
]  # fmt: skip


def get_system_info(print_info: bool = True) -> tuple[dict[str, str], str]:
    """Get the versions that SB3's function of the same name lists (Python, PyTorch, SB3, ...) and this package's.

    :param print_info: whether to print them
    :return: a dict of the versions, with the path of this package, and the same as text
    """
    own = f"{__version__} ({Path(__file__).parent})"
    info, text = utils.get_system_info(print_info=False)
    text = f"- sb3_ppo_variants: {own}\n{text}"
    if print_info:
        print(text)
    return {"sb3_ppo_variants": own, **info}, text
