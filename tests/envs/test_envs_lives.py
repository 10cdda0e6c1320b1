"""Lost lives end episodes while games continue, or are refused."""

import warnings
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.envs import GymnasiumVecEnv, VecEpisodicLife

gym.register_envs(ale_py)


def lose_a_life(**arguments: Any) -> dict[str, Any]:
    """Play Breakout without moving after launching the ball, and return the info of the reset after a lost life."""
    venv = GymnasiumVecEnv(AtariVectorEnv("breakout", 2, noop_max=1, stack_num=1, **arguments))
    venv.reset()
    for action in [1, *[0] * 50]:
        dones = venv.step(np.full(2, action))[2]
        if dones.any():
            return venv.reset_infos[0]
    raise AssertionError("no life was lost")


def test_a_lost_life_that_is_no_new_game() -> None:
    with pytest.raises(ArgumentError, match=r"life_loss_info=True, .*: use make_ale_vec_env, whose terminal_on"):
        lose_a_life(life_loss_info=True, autoreset_mode="SameStep")
    with pytest.raises(ArgumentError, match="must not be made with life_loss_info=True"):
        GymnasiumVecEnv(gym.make_vec("ALE/Breakout-v5", 2, life_loss_info=True))


def test_a_lost_life_that_may_be_a_new_game() -> None:
    """Only with episodic_life does the environment itself begin a new game, but the infos do not show it."""
    for argument in ("life_loss_info", "episodic_life"):
        with pytest.warns(UserWarning, match="use make_ale_vec_env, whose terminal_on_life_loss"):
            assert lose_a_life(**{argument: True})["lives"] == 5


def test_a_lost_life_that_is_a_new_game() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lose_a_life(episodic_life=True, autoreset_mode="SameStep")["lives"] == 5
        venv = GymnasiumVecEnv(gym.make_vec("ALE/Breakout-v5", 2, episodic_life=True, noop_max=1))
        venv.reset()
        n_lost = sum(int(venv.step(np.full(2, action))[2].sum()) for action in [1, *[0] * 50] * 2)
        assert n_lost >= 2


class LosesALifeAtTheLimit(gym.Env):
    """Loses a life in the second step. SB3's wrapper asks the emulator, here ``self.ale``, for the lives."""

    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.Discrete(2)
    ale: Any = None

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        self.n_lives, self.ale, self.frame = 3, self, 0
        return 0, {"lives": 3}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        self.frame += 1
        self.n_lives = 3 if self.frame < 2 else 2
        return self.frame, 0.0, False, False, {"lives": self.n_lives}

    def lives(self) -> int:
        return self.n_lives


def test_a_life_that_is_lost_where_the_game_is_cut_off() -> None:
    def make() -> gym.Env:
        return TimeLimit(LosesALifeAtTheLimit(), 2)

    theirs = DummyVecEnv([lambda: EpisodicLifeEnv(make())])
    ours = VecEpisodicLife(GymnasiumVecEnv(SyncVectorEnv([make])))
    for venv in (theirs, ours):
        venv.reset()
        venv.step(np.zeros(1, int))
        _, _, dones, infos = venv.step(np.zeros(1, int))
        assert dones == [True] and infos[0]["terminal_observation"] == 2
        # Training must not bootstrap from the value of the next state after a lost life.
        assert infos[0]["TimeLimit.truncated"] is False


def test_environments_without_lives() -> None:
    venv = VecEpisodicLife(GymnasiumVecEnv(gym.make_vec("CartPole-v1", 2)))
    with pytest.raises(ArgumentError, match=r"venv=.* must have 'lives' in the info of every step and reset"):
        venv.reset()
