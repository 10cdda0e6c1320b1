"""Repeated training does not leak memory, files or threads.

``SOAK_SECONDS`` sets the duration, 600 by default.
"""

import gc
import os
import time
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from helpers import BOX, NoiseEnv
from sb3_ppo_variants import NonFiniteError, PPOAdaptiveKL, PPOClip
from sb3_ppo_variants.envs import SafeSubprocVecEnv

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
WARM_UP = 0.2
MEBIBYTE = 2**20
IMAGE = spaces.Box(0, 255, (1, 36, 36), np.uint8)


class Breaks(NoiseEnv):
    def step(self, action: Any) -> Any:
        observation, _, *others = super().step(action)
        return observation, float("nan") if self._steps == 5 else 0.0, *others


def envs(vec_env: Any = DummyVecEnv, env: Any = NoiseEnv, **arguments: Any) -> VecEnv:
    made: VecEnv = vec_env([partial(env, BOX, **arguments)] * 2)
    return made


def train_all() -> None:
    """Train on every path, from creating the environments to closing them."""
    arguments: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "device": "cpu"}
    models: list[Any] = [
        PPOClip("MlpPolicy", envs(), **arguments),
        PPOClip("MlpPolicy", envs(), fast=False, **arguments),
        PPOAdaptiveKL("MlpPolicy", VecNormalize(envs()), **arguments),
        PPOClip("CnnPolicy", envs(observation_space=IMAGE), **arguments),
        PPOClip("MlpPolicy", envs(partial(SafeSubprocVecEnv, start_method="fork")), **arguments),
        PPOClip("MlpPolicy", envs(env=Breaks), **arguments),
    ]
    for model in models:
        try:
            model.learn(128)
        except NonFiniteError:
            assert model is models[-1]
        model.env.close()


@pytest.mark.slow
def test_nothing_grows() -> None:
    process = psutil.Process()
    start = time.monotonic()
    samples = []
    while time.monotonic() - start < SECONDS:
        train_all()
        gc.collect()
        samples.append((process.memory_info().rss, process.num_fds(), process.num_threads(), len(process.children())))
    memory, *counts = np.array(samples[int(WARM_UP * len(samples)) :]).T
    # Medians, because a single sample depends on what the allocator has just returned.
    tenth = max(1, len(memory) // 10)
    growth = (np.median(memory[-tenth:]) - np.median(memory[:tenth])) / MEBIBYTE
    print(f"{len(samples)} rounds in {SECONDS:.0f} s; memory {memory[-1] / MEBIBYTE:.0f} MiB, {growth:+.1f} MiB")
    assert growth < 5
    for count in counts:
        assert count.min() == count.max()
