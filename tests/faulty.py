"""Environments that return one wrong value, and runs that it stops."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from helpers import BOX, VECTOR, NoiseEnv, small
from sb3_ppo_variants import NonFiniteError, PPOClip

NAN, INF = float("nan"), float("inf")
N_STEPS, N_ENVS, EPISODE = 14, 2, 7
UPDATES = 2
# Steps of the rollout after these updates: one within an episode, and one at its end.
WITHIN, AT_END = UPDATES * N_STEPS + 4, UPDATES * N_STEPS + EPISODE


@dataclass
class Fault:
    """A wrong value that environment 1 returns at one step."""

    place: str
    value: float
    at: int = WITHIN

    @property
    def step(self) -> int:
        """The model's number of timesteps when the fault occurs."""
        return (self.at - 1) * N_ENVS


def spoiled(observation: Any, value: float) -> Any:
    if isinstance(observation, dict):
        return {key: spoiled(part, value) if key == "a" else part for key, part in observation.items()}
    observation = np.array(observation, np.result_type(observation, np.float32))
    observation.flat[-1] = value
    return observation


class FaultyEnv(NoiseEnv):
    """Returns a wrong value once."""

    def __init__(self, fault: Fault | None, action_space: spaces.Space = BOX, observation_space: spaces.Space = VECTOR):
        super().__init__(action_space, deepcopy(observation_space))
        self._fault = fault
        self._taken = 0

    def _is(self, place: str) -> bool:
        return self._fault is not None and self._fault.place == place and self._fault.at == self._taken

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        observation, info = super().reset(seed=seed)
        return (spoiled(observation, self._fault.value) if self._fault and self._is("first") else observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self._taken += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self._fault and (self._is("observation") or self._is("terminal")):
            observation = spoiled(observation, self._fault.value)
        if self._fault and self._is("reward"):
            reward = self._fault.value
        return observation, reward, terminated, truncated, info


def faulty_envs(fault: Fault | None, vec_env: Any = DummyVecEnv, **arguments: Any) -> VecEnv:
    env: VecEnv = vec_env([partial(FaultyEnv, each, **arguments) for each in (None, fault)])
    return env


def model_for(env: VecEnv, cls: Any = PPOClip, **arguments: Any) -> Any:
    return small(cls, env, **{"n_steps": N_STEPS, "batch_size": 14, "seed": 0, **arguments})


def state(model: Any) -> th.Tensor:
    """Return all weights, and Adam's moments and step counts."""
    moments = model.policy.optimizer.state_dict()["state"].values()
    tensors = [*model.policy.parameters(), *(tensor for each in moments for tensor in each.values())]
    return th.cat([tensor.detach().flatten() for tensor in tensors])


def stopped(make_env: Callable[..., VecEnv], fault: Fault, callback: Any = None, **arguments: Any) -> NonFiniteError:
    """Return the error of a run with a fault, and check that the model is as after the updates before it."""
    good = model_for(make_env(None), **arguments).learn(UPDATES * N_STEPS * N_ENVS)
    bad = model_for(make_env(fault), **arguments)
    with pytest.raises(NonFiniteError) as caught:
        bad.learn(9 * N_STEPS * N_ENVS, callback)
    assert th.equal(state(bad), state(good)) and state(bad).isfinite().all()
    assert bad._n_updates == good._n_updates
    for model in (good, bad):
        model.env.close()
    return caught.value
