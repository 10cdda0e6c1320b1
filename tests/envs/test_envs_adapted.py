"""Gymnasium's vector environments, given to an algorithm as they are."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from helpers import VARIANTS, assert_same_weights
from sb3_ppo_variants import PPOClip

ENV = "CartPole-v1"
SMALL: dict[str, Any] = {"n_steps": 64, "batch_size": 64, "n_epochs": 2, "seed": 1, "device": "cpu"}
ADAPTED = r"one of gymnasium's vector environments.* is made into a \w+.*, with a VecMonitor"
MAKE: list[Any] = [partial(gym.make, ENV)] * 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_it_trains_as_sb3_does_in_the_same_environments(kind: Any, mode: AutoresetMode) -> None:
    expected = PPO("MlpPolicy", make_vec_env(ENV, 2), **SMALL).learn(256)
    with pytest.warns(UserWarning, match=ADAPTED):
        model = PPOClip("MlpPolicy", kind(MAKE, autoreset_mode=mode), **SMALL, fast=False)
    found = model.learn(256)
    env = model.get_env()
    assert env is not None
    env.close()
    assert len(model.ep_info_buffer or ()) == len(expected.ep_info_buffer or ()) > 4
    assert_same_weights(found, expected)


@pytest.mark.parametrize("algorithm", VARIANTS)
@pytest.mark.filterwarnings(f"ignore:.*{ADAPTED}")
def test_every_class_takes_a_native_one(algorithm: Any) -> None:
    model = algorithm("MlpPolicy", gym.make_vec(ENV, 2, "vector_entry_point"), **SMALL).learn(128)
    assert isinstance(model.get_env(), VecMonitor) and model.num_timesteps == 128


@pytest.mark.filterwarnings(f"ignore:.*{ADAPTED}")
def test_a_loaded_model_takes_it_too(tmp_path: Path) -> None:
    model = PPOClip("MlpPolicy", ENV, **SMALL)
    model.save(tmp_path / "model")
    loaded = PPOClip.load(tmp_path / "model", env=SyncVectorEnv(MAKE[:1]))
    assert loaded.learn(64).num_timesteps == 64
    model.set_env(gym.make_vec(ENV, 1, "vector_entry_point"))  # type: ignore[arg-type]
    assert model.learn(64).num_timesteps == 64


def test_the_message_comes_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            PPOClip("MlpPolicy", SyncVectorEnv(MAKE), **SMALL)
            PPOClip("MlpPolicy", VecMonitor(DummyVecEnv(MAKE)), **SMALL)
    assert [str(each.message).partition(",")[0] for each in caught] == ["env is one of gymnasium's vector environments"]


def test_environments_with_a_monitor_get_no_second_one() -> None:
    def make() -> gym.Env:
        return Monitor(gym.make(ENV))

    with pytest.warns(UserWarning, match="is made into a DummyVecEnv;"):
        model = PPOClip("MlpPolicy", SyncVectorEnv([make]), **SMALL)
    assert type(model.get_env()) is DummyVecEnv
    assert len(model.learn(128).ep_info_buffer or ()) > 0
