"""Lost lives end episodes while games continue."""

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.envs import GymnasiumVecEnv, VecEpisodicLife

gym.register_envs(ale_py)


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
