"""Environments and models with LSTMs shared by several tests."""

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from helpers import BOX, VECTOR, NoiseEnv, small

SMALL = {"lstm_hidden_size": 8, "net_arch": [8]}


class RaggedEnv(NoiseEnv):
    """Episodes of 1 to 11 steps, which are terminated or truncated."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        observation, reward, *_, info = super().step(action)
        ends = bool(self.np_random.random() < 0.2)
        truncated = self._steps == 11 or bool(self.np_random.random() < 0.1)
        return observation, reward, ends, truncated and not ends, info


def ragged_envs(action_space: spaces.Space = BOX, space: spaces.Space = VECTOR, n_envs: int = 3) -> VecEnv:
    return DummyVecEnv([lambda: RaggedEnv(action_space, deepcopy(space)) for _ in range(n_envs)])


def small_recurrent(cls: Any, env: VecEnv | None = None, policy: Any = "MlpLstmPolicy", **arguments: Any) -> Any:
    settings: dict[str, Any] = {"learning_rate": 1e-3, "policy_kwargs": SMALL}
    return small(cls, ragged_envs() if env is None else env, policy, **{**settings, **arguments})


class Recall(gym.Env):
    """Shows a sign only in the first observation of an episode, and rewards a last action that matches it."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._sign, self._steps = int(self.np_random.integers(2)), 0
        return np.full(1, 2 * self._sign - 1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._steps += 1
        done = self._steps == 4
        return np.zeros(1, np.float32), float(done and action == self._sign), done, False, {}


def assert_alike(reference: Any, fast: Any) -> None:
    """Check that models have nearly the same weights."""
    for key, weight in reference.policy.state_dict().items():
        th.testing.assert_close(fast.policy.state_dict()[key], weight, rtol=1e-3, atol=1e-5)
