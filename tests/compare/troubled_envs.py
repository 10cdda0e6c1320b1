"""Environments that fail, registered as ``troubled_envs:ID``."""

import os
import signal
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class RaisesInReset(CartPoleEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise RuntimeError("no beginning")


class RaisesAtStep1000(CartPoleEnv):
    count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 1000:
            raise RuntimeError("no step 1000")
        return super().step(action)


class EndsItsProcess(CartPoleEnv):
    def step(self, action: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Exits(CartPoleEnv):
    def step(self, action: Any) -> Any:
        raise SystemExit(0)


class PaysNaN(CartPoleEnv):
    def step(self, action: Any) -> Any:
        observation, _, *others = super().step(action)
        return observation, float("nan"), *others


class PaysTooMuch(CartPoleEnv):
    """Its rewards are finite, but the sum of 100 episodes is not."""

    def step(self, action: Any) -> Any:
        observation, _, *others = super().step(action)
        return observation, 1e306, *others


for kind in (RaisesInReset, RaisesAtStep1000, EndsItsProcess, Exits, PaysNaN, PaysTooMuch):
    gym.register(f"{kind.__name__}-v0", entry_point=f"{__name__}:{kind.__name__}", max_episode_steps=500)
