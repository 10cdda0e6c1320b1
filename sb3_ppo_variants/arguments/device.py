"""The device that ``device="auto"`` stands for."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import get_device

# Classes are listed by name, because some are only imported when needed. SB3's advice to use the CPU does so too.
SMALL = {"MlpPolicy", "ActorCriticPolicy", "MaskableMlpPolicy", "MaskableActorCriticPolicy"}


def chosen_device(
    device: th.device | str,
    policy: str | type[BasePolicy],
    policy_kwargs: Mapping[str, Any] | None,
    verbose: int = 0,
) -> th.device:
    """Return the device to train a policy on.

    :param device: the requested device. ``"auto"`` selects the CPU for an ``MlpPolicy``, masked or not, with the
        default features extractor, because a GPU trains such small networks more slowly. For other policies it selects
        the GPU, if there is one
    :param verbose: 1 to print a message if the CPU is selected although there is a GPU
    :return: the device; as in SB3, the CPU if the requested one is not available, with a warning
    """
    name = policy if isinstance(policy, str) else policy.__name__
    if device == "auto" and name in SMALL and "features_extractor_class" not in (policy_kwargs or {}):
        if verbose >= 1 and th.cuda.is_available():
            print('device="auto" selects the CPU, which trains small networks faster; pass device="cuda" for the GPU')
        return th.device("cpu")
    found = get_device(device)
    if device != "auto" and found.type != th.device(device).type:
        warnings.warn(f"device={str(device)!r} is not available: training on device={str(found)!r} instead")
    return found
