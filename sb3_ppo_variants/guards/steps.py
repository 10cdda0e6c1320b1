"""The part of a vectorised environment that takes steps."""

from typing import Protocol

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn


class Steps(Protocol):
    """The steps and resets of a vectorised environment; see SB3's ``VecEnv``."""

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Take a step."""

    def step_async(self, actions: np.ndarray) -> None:
        """Start a step."""

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step."""

    def reset(self) -> VecEnvObs:
        """Reset all environments."""
