"""A run that is cut short and resumed is the run that was not."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecNormalize

from helpers import ACTION_SPACES, VARIANTS, LogRecorder, noise_envs
from resuming import run, state
from sb3_ppo_variants import ArgumentError, DamagedFileError, ExactCheckpointCallback, PPOAdaptiveKL, PPOClip
from sb3_ppo_variants.callbacks import Checkpoint


def small(cls: Any, make_env: Callable[[], VecEnv], policy: str = "MlpPolicy", **arguments: Any) -> Any:
    settings: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu"}
    return cls(policy, make_env(), **{**settings, **arguments})


def exact(cls: Any, make_env: Callable[[], VecEnv], folder: Path, kill_at: int = 150, **arguments: Any) -> None:
    learn = {name: arguments.pop(name) for name in ("log_interval",) if name in arguments}
    whole, cut = (
        run(lambda: small(cls, make_env, **arguments), make_env, folder / str(at), 200, 64, at, **learn)
        for at in (None, kill_at)
    )
    assert cut == whole
    assert len(whole[1]) > 1


def pendulums(vec_env_cls: type[VecEnv] = DummyVecEnv) -> VecEnv:
    # Truncated after ten steps, so that there are statistics of episodes.
    make = lambda: gym.wrappers.TimeLimit(gym.make("Pendulum-v1"), 10)  # noqa: E731
    return make_vec_env(make, 2, seed=1, vec_env_cls=vec_env_cls)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_class_on_both_paths(variant: Any, fast: bool, tmp_path: Path) -> None:
    exact(variant, pendulums, tmp_path, fast=fast, learning_rate=LinearSchedule(1e-3, 0.0, 1.0))
