"""Vectorised environments that lack what SB3's PPO does not need: every class trains on them."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecCheckNan, VecEnv, VecNormalize

from helpers import VARIANTS
from minimal_vec_envs import MINIMAL, OnlyAbstract, OverPool
from sb3_ppo_variants import ArgumentError, EnvOutputError, ExactCheckpointCallback, PPOClip, PPOCustom
from sb3_ppo_variants.objectives.surrogates import Clipped

SMALL: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "device": "cpu"}
WRAPPERS: list[Any] = [lambda env: env, VecNormalize, lambda env: VecNormalize(VecCheckNan(env))]


def trained(algorithm: Any, env: VecEnv, **arguments: Any) -> Any:
    th.manual_seed(1)
    np.random.seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SB3's constructor of VecEnv warns of a missing render_mode.
        return algorithm("MlpPolicy", env, **SMALL, **arguments).learn(96)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("wrapped", WRAPPERS, ids=["plain", "normalised", "checked"])
@pytest.mark.parametrize("make", MINIMAL)
def test_the_reference_path_equals_sb3(make: Callable[[], VecEnv], wrapped: Callable[[VecEnv], VecEnv]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = wrapped(make()), wrapped(make())
    expected = trained(PPO, theirs).policy.state_dict()
    found = trained(PPOClip, ours, fast=False).policy.state_dict()
    assert all(th.equal(expected[name], found[name]) for name in expected)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("make", MINIMAL)
@pytest.mark.parametrize("algorithm", [*VARIANTS, PPOCustom])
@pytest.mark.filterwarnings("ignore:The `render_mode` attribute")
def test_every_class_trains(algorithm: Any, make: Callable[[], VecEnv]) -> None:
    arguments = {"objective": Clipped(0.2)} if algorithm is PPOCustom else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*action_masks")
        model = algorithm("MlpPolicy", make(), **SMALL, **arguments, fast=True).learn(96)
    assert (model.num_timesteps, model._n_updates) == (96, 4)


@pytest.mark.filterwarnings("ignore:The `render_mode` attribute")
def test_its_outputs_are_checked() -> None:
    env: Any = OverPool()
    state = env.venv.state

    def advance(actions: np.ndarray, own: Any = env.venv.advance) -> Any:
        observations, rewards, *others = own(actions)
        return observations, rewards[:, None], *others

    env.venv.advance = advance
    with pytest.raises(EnvOutputError, match="the reward at step 0 is"):
        PPOClip("MlpPolicy", env, **SMALL).learn(48)
    assert state.shape == (3, 2)


@pytest.mark.filterwarnings("ignore:The `render_mode` attribute")
def test_an_environment_without_seeds_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"VecNormalize object .* cannot be seeded .*'seed'.* pass seed=None"):
        PPOClip("MlpPolicy", VecNormalize(OverPool()), seed=1)
    model = PPOClip("MlpPolicy", OverPool(), **SMALL)
    with pytest.raises(ArgumentError, match=r"OverPool object .* cannot be seeded .* exact runs need"):
        model.learn(96, ExactCheckpointCallback(48, tmp_path / "run"))
    assert model.num_timesteps == 0


def test_an_environment_without_attributes_is_checkpointed(tmp_path: Path) -> None:
    model = PPOClip("MlpPolicy", OnlyAbstract(), **SMALL, seed=1)
    model.learn(96, ExactCheckpointCallback(48, tmp_path / "run", keep_last=None))
    resumed = PPOClip.resume(tmp_path / "run", OnlyAbstract())
    assert resumed.num_timesteps == 48
