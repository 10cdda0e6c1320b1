"""Environments and models that several tests use."""

import re
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_ppo_variants import PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped

# Untyped, because tests pass them arguments that only a table knows.
VARIANTS: list[Any] = [PPOClip, PPOAdaptiveKL, PPOFixedKL, PPOUnclipped]
PENALISED: list[Any] = [PPOAdaptiveKL, PPOFixedKL]

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
ACTION_SPACES = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 4]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
}


class NoiseEnv(gym.Env):
    """Random observations and rewards from one seeded generator, for any spaces; episodes of 7 steps."""

    def __init__(self, action_space: spaces.Space, observation_space: spaces.Space = VECTOR):
        self.action_space = action_space
        self.observation_space = observation_space
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._steps += 1
        reward = float(np.sum(action)) + self.np_random.normal()
        return self.observation_space.sample(), reward, False, self._steps == 7, {}


def noise_envs(action_space: spaces.Space, observation_space: spaces.Space = VECTOR, n_envs: int = 2) -> VecEnv:
    # Each environment has its own copy of the space, whose generator makes the observations.
    return DummyVecEnv([lambda: NoiseEnv(action_space, deepcopy(observation_space)) for _ in range(n_envs)])


class LogRecorder(BaseCallback):
    """Keeps what each update logged."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        return True

    def _keep(self) -> None:
        if "train/loss" in self.logger.name_to_value:
            self.updates.append(dict(self.logger.name_to_value))

    def _on_rollout_start(self) -> None:
        self._keep()

    def _on_training_end(self) -> None:
        self._keep()


def named(value: object) -> str:
    """The name of a case, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
