"""Environments with masked actions shared by several tests."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from helpers import ACTION_SPACES, VECTOR, NoiseEnv, small
from sb3_ppo_variants import PPOClip

MASKED_SPACES = {name: space for name, space in ACTION_SPACES.items() if name != "Box"}
DISCRETE, MULTI = MASKED_SPACES["Discrete"], MASKED_SPACES["MultiDiscrete"]


def sizes_of(space: spaces.Space) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return space.nvec.tolist() if isinstance(space, spaces.MultiDiscrete) else [2] * int(np.prod(space.shape or ()))


class MaskedNoiseEnv(NoiseEnv):
    """Draws a random mask after each step, and fails if an action is masked. Episodes end after ``length`` steps."""

    def __init__(self, action_space: spaces.Space, observation_space: spaces.Space = VECTOR, length: int = 7):
        super().__init__(action_space, observation_space)
        self._sizes, self._length = sizes_of(action_space), length
        self.masks = np.ones(sum(self._sizes), dtype=bool)

    def action_masks(self) -> Any:
        return self.masks

    def _draw(self) -> None:
        parts = [self.np_random.random(size) < 0.5 for size in self._sizes]
        for part in parts:
            part[self.np_random.integers(len(part))] = True
        self.masks = np.concatenate(parts)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        returned = super().reset(seed=seed, options=options)
        self._draw()
        return returned

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        starts = np.cumsum([0, *self._sizes[:-1]])
        assert self.masks[starts + np.ravel(action).astype(int)].all(), "the action is masked"
        observation, reward, _, _, info = super().step(action)
        self._draw()
        ended = self._steps >= self._length
        return observation, reward, ended and self._length % 2 == 0, ended and self._length % 2 == 1, info


def masked_envs(
    action_space: spaces.Space,
    observation_space: spaces.Space = VECTOR,
    n_envs: int = 3,
    vec_env: Callable[[list[Any]], VecEnv] = DummyVecEnv,
) -> VecEnv:
    def make(i: int) -> Callable[[], MaskedNoiseEnv]:
        # Each environment has its own copies of the spaces, because their generators draw the observations.
        return lambda: MaskedNoiseEnv(deepcopy(action_space), deepcopy(observation_space), length=5 + i)

    return vec_env([make(i) for i in range(n_envs)])


def small_masked(cls: Any = PPOClip, env: Any = None, policy: Any = "MaskableMlpPolicy", **arguments: Any) -> Any:
    return small(cls, masked_envs(MULTI) if env is None else env, policy, **arguments)
