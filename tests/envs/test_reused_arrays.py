"""Environments that write every observation to the same array train as if each observation were an array of its own."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import MASKED_SPACES, MULTI, MaskedNoiseEnv
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from helpers import NoiseEnv, collect, flat_weights, small
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.envs import SafeSubprocVecEnv

ARGUMENTS: dict[str, Any] = dict(n_steps=16, batch_size=16, n_epochs=2, seed=3)


class Walk(gym.Env):
    """A random walk that a time limit ends after 5 steps; actions have no effect on it.

    :param reuse: how observations share memory: not at all, as one array, or as views of it
    """

    observation_space = spaces.Box(-100, 100, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, reuse: str = "no"):
        self._reuse = reuse
        self._array = np.zeros(3, np.float32)

    def _observation(self) -> np.ndarray:
        return {"no": self._array.copy(), "array": self._array, "view": self._array[:]}[self._reuse]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._array[:] = self.np_random.normal(size=3)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._array += self.np_random.normal(size=3).astype(np.float32)
        return self._observation(), float(self._array[0] + action), False, self._steps == 5, {}


class SameArrays(DummyVecEnv):
    """Writes the results of all steps to the same arrays, as simulators with shared memory do."""

    def reset(self) -> Any:
        self._same: list[Any] = [super().reset(), np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, bool)]
        return self._same[0]

    def step_wait(self) -> Any:
        *arrays, infos = super().step_wait()
        for same, new in zip(self._same, arrays, strict=True):
            same[:] = new
        return *self._same, infos


def walks(vec_env: Callable[..., Any], reuse: str) -> Any:
    return vec_env([partial(Walk, reuse)] * 2)


@pytest.fixture(scope="module")
def expected() -> th.Tensor:
    return flat_weights(PPO("MlpPolicy", walks(DummyVecEnv, "no"), **ARGUMENTS).learn(64))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reuse", ["array", "view"])
@pytest.mark.parametrize("vec_env", [DummyVecEnv, SafeSubprocVecEnv])
def test_the_end_of_an_episode_is_copied(vec_env: Callable[..., Any], reuse: str, expected: th.Tensor) -> None:
    model = PPOClip("MlpPolicy", walks(vec_env, reuse), fast=False, **ARGUMENTS)
    assert th.equal(flat_weights(model.learn(64)), expected)


def test_arrays_that_a_vectorised_environment_reuses_are_copied(expected: th.Tensor) -> None:
    model = PPOClip("MlpPolicy", walks(SameArrays, "no"), fast=False, **ARGUMENTS)
    assert th.equal(flat_weights(model.learn(64)), expected)


class Overwrites(gym.Wrapper):
    """Writes into the actions that it is given."""

    def step(self, action: Any) -> Any:
        returned = super().step(action)
        action[...] = 0
        return returned


@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy", "MaskableMlpPolicy", "MaskableMlpLstmPolicy"])
@pytest.mark.parametrize("space", [MULTI, MASKED_SPACES["MultiBinary"]], ids=["MultiDiscrete", "MultiBinary"])
@pytest.mark.parametrize("make", [DummyVecEnv, SameArrays])
def test_environments_that_write_into_actions(make: Any, space: spaces.Space, policy: str) -> None:
    single = MaskedNoiseEnv if "Mask" in policy else NoiseEnv

    def actions(wrapper: Any, fast: Any) -> np.ndarray:
        env = make([lambda: wrapper(single(deepcopy(space)))] * 2)
        return collect(small(env=env, policy=policy, fast=fast)).rollout_buffer.actions

    for path in ("auto" if "Lstm" in policy else True, False):
        np.testing.assert_array_equal(actions(Overwrites, path), actions(gym.Wrapper, path))
