"""The device that ``device="auto"`` stands for."""

from collections.abc import Mapping
from typing import Any

import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import get_device

# Where a class is not known before it is imported, its name stands for it, as in SB3's own advice to use the CPU.
SMALL = {"MlpPolicy", "ActorCriticPolicy", "MaskableMlpPolicy", "MaskableActorCriticPolicy"}


def chosen_device(
    device: th.device | str,
    policy: str | type[BasePolicy],
    policy_kwargs: Mapping[str, Any] | None,
    verbose: int = 0,
) -> th.device:
    """The device to train a policy on.

    :param device: what was asked for. ``"auto"`` is the CPU for an ``MlpPolicy``, masked or not, with SB3's own
        extractor of features, since a GPU trains such small networks more slowly; for others it is the GPU, if there
        is one
    :param verbose: 1 says so where there is a GPU that this leaves alone
    """
    name = policy if isinstance(policy, str) else policy.__name__
    if device == "auto" and name in SMALL and "features_extractor_class" not in (policy_kwargs or {}):
        if verbose >= 1 and th.cuda.is_available():
            print('device="auto" selects the CPU, which trains small networks faster; pass device="cuda" for the GPU')
        return th.device("cpu")
    return get_device(device)
