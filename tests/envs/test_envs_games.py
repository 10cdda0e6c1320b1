"""Allowed ids and arguments of Atari games, and how many frames they skip."""

from functools import partial
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.atari_wrappers import AtariWrapper

from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.envs import check_frame_skip, make_ale_vec_env, make_gymnasium_vec_env

gym.register_envs(ale_py)

BREAKOUT = "BreakoutNoFrameskip-v4"
wrapped = partial(make_gymnasium_vec_env, wrapper_class=AtariWrapper)


def test_frame_skip() -> None:
    check_frame_skip(BREAKOUT)
    check_frame_skip("ALE/Breakout-v5", env_kwargs={"frameskip": 1})
    check_frame_skip("ALE/Breakout-v5", frame_skip=1)
    with pytest.raises(ArgumentError, match="'MsPacmanNoFrameskip-v4'"):
        check_frame_skip("ALE/MsPacman-v5")


def test_an_id_that_says_only_the_game(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, AtariEnv itself skips four frames and repeats actions with a probability of 0.25."""
    spec = EnvSpec("OnlyPong-v0", entry_point="ale_py.env:AtariEnv", kwargs={"game": "pong"})
    monkeypatch.setitem(gym.registry, spec.id, spec)
    with pytest.raises(ArgumentError, match="skips 4 frames, and the wrapper skips 4 again"):
        wrapped("OnlyPong-v0")
    inner: Any = make_ale_vec_env("OnlyPong-v0", wrapper_kwargs={"frame_skip": 1, "noop_max": 0}).unwrapped
    inner.reset()
    assert inner.step(np.zeros(1, int))[3][0]["episode_frame_number"] == 5


def test_frames_that_are_skipped_once() -> None:
    wrapped(f"ale_py:{BREAKOUT}").close()
    wrapped("ALE/Breakout-v5", env_kwargs={"frameskip": 1}).close()
    wrapped("ALE/Breakout-v5", wrapper_kwargs={"frame_skip": 1}).close()
    with pytest.raises(gym.error.UnregisteredEnv, match="Did you mean: `Breakout"):
        wrapped("ALE/Brickout-v5")


def test_ids_after_the_module_that_registers_them() -> None:
    prefixed, bare = (make_ale_vec_env(env_id, seed=0) for env_id in (f"ale_py:{BREAKOUT}", BREAKOUT))
    np.testing.assert_array_equal(np.asarray(prefixed.reset()), np.asarray(bare.reset()))


def test_every_argument_of_the_game_that_is_allowed() -> None:
    venv = make_ale_vec_env(
        BREAKOUT,
        env_kwargs={
            "frameskip": 1,
            "repeat_action_probability": 0.1,
            "full_action_space": True,
            "continuous": False,
            "continuous_action_threshold": 0.5,
            "max_num_frames_per_episode": 40,
            "num_threads": 1,
            "thread_affinity_offset": -1,
            "use_fire_reset": False,
        },
    )
    assert venv.action_space == spaces.Discrete(18)
    venv.reset()
    assert [bool(venv.step(np.zeros(1, int))[2][0]) for _ in range(10)] == [False] * 9 + [True]
