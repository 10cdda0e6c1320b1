"""The policy objectives of the PPO paper (https://arxiv.org/abs/1707.06347) for Stable-Baselines3.

What this module exports is imported when it is first used, because PyTorch and SB3 take seconds to import, and
``python -m sb3_ppo_variants --help`` needs neither.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stable_baselines3.ppo import CnnPolicy, MlpPolicy, MultiInputPolicy

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
    from sb3_ppo_variants.losses import ClippedError, Huber, SquaredError, ValueLoss
    from sb3_ppo_variants.objectives import Batch, Objective
    from sb3_ppo_variants.processes import init_processes
    from sb3_ppo_variants.saving import ExactCheckpointCallback
    from sb3_ppo_variants.separate import SeparateUpdates
    from sb3_ppo_variants.step_size import KLAdaptive
    from sb3_ppo_variants.stops import ApproximateKL, EarlyStop, ExactKL, RatioDeviation
    from sb3_ppo_variants.variants import PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, PPOUnclipped

__version__ = "1.0.0"
__all__ = [
    "ApproximateKL",
    "ArgumentError",
    "Batch",
    "CallbackError",
    "ClippedError",
    "CnnPolicy",
    "DamagedFileError",
    "EarlyStop",
    "EnvOutputError",
    "ExactCheckpointCallback",
    "ExactKL",
    "Huber",
    "KLAdaptive",
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
    "RatioDeviation",
    "SeparateUpdates",
    "SquaredError",
    "ValueLoss",
    "WorkerError",
    "get_system_info",
    "init_processes",
    "register_kl",
]

# The modules that export these names, and modules that are attributes themselves.
_MODULES = {
    "saving": ["ExactCheckpointCallback"],
    "errors": [name for name in __all__ if name.endswith("Error") and name != "MissingKLError"],
    "kl": ["MissingKLError", "register_kl"],
    "distributions": [],
    "evaluation": [],
    "losses": ["ClippedError", "Huber", "SquaredError", "ValueLoss"],
    "objectives": ["Batch", "Objective"],
    "processes": ["init_processes"],
    "stops": ["ApproximateKL", "EarlyStop", "ExactKL", "RatioDeviation"],
    "separate": ["SeparateUpdates"],
    "step_size": ["KLAdaptive"],
    "variants": [name for name in __all__ if name.startswith("PPO")],
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
_MODULE_OF |= dict.fromkeys(["CnnPolicy", "MlpPolicy", "MultiInputPolicy"], "stable_baselines3.ppo")


def get_system_info(print_info: bool = True) -> tuple[dict[str, str], str]:
    """Get the versions that SB3's function of the same name lists (Python, PyTorch, SB3, ...) and this package's.

    :param print_info: whether to print them
    :return: a dict of the versions, with the path of this package, and the same as text
    """
    from stable_baselines3.common import utils

    own = f"{__version__} ({Path(__file__).parent})"
    info, text = utils.get_system_info(print_info=False)
    text = f"- sb3_ppo_variants: {own}\n{text}"
    if print_info:
        print(text)
    return {"sb3_ppo_variants": own, **info}, text


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *__all__})
