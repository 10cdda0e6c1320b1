"""Environments with masked actions shared by several tests."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from helpers import ACTION_SPACES, KICK, VECTOR, NoiseEnv, small
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


class MaskedHybridEnv(NoiseEnv):
    """Draws masks in the structure of ``KICK`` or ``NESTED``, and fails if an action is masked."""

    def _draw(self) -> None:
        drawn = [self.np_random.random(n) < 0.5 for n in self._sizes()]
        for of_dimension in drawn:
            of_dimension[self.np_random.integers(len(of_dimension))] = True
        self._drawn = drawn

    def _sizes(self) -> list[int]:
        return [3] if self.action_space == KICK else [2, 2, 2, 4, 3, 2, 3, 4, 5, 2, 2, 2, 2]

    def action_masks(self) -> Any:
        drawn = self._drawn
        if self.action_space == KICK:
            return {"choice": drawn[0]}
        coins, dials, grid, square = (np.concatenate(drawn[a:b]) for a, b in ((0, 2), (2, 4), (5, 9), (9, 13)))
        return (coins, {"dials": dials}, drawn[4], None, (None, grid), square)

    def reset(self, **arguments: Any) -> Any:
        returned = super().reset(**arguments)
        self._draw()
        return returned

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        if self.action_space == KICK:
            chosen = [action["choice"]]
        else:
            level, grid = action[2] + 1, action[4][1] - np.array([[1, 1], [0, 9]])
            chosen = [*action[0], *action[1]["dials"], level, *grid.ravel(), *action[5].ravel()]
        assert all(mask[int(each)] for mask, each in zip(self._drawn, chosen, strict=True)), "the action is masked"
        returned = super().step(chosen[0])
        self._draw()
        return returned


def masked_hybrid_envs(space: Any, observations: Any = VECTOR, make: Callable[..., VecEnv] = DummyVecEnv) -> VecEnv:
    return make([lambda: Monitor(MaskedHybridEnv(deepcopy(space), deepcopy(observations))) for _ in range(2)])


def small_masked(cls: Any = PPOClip, env: Any = None, policy: Any = "MaskableMlpPolicy", **arguments: Any) -> Any:
    return small(cls, masked_envs(MULTI) if env is None else env, policy, **arguments)
