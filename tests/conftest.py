"""What all tests begin with."""

import gymnasium as gym
import pytest
import torch as th

# It replaces gymnasium's TimeLimit, for good; all tests but those of its own scripts are about gymnasium's.
TIME_LIMIT = gym.wrappers.TimeLimit
import rl_zoo3  # noqa: E402, F401

for module in (gym.wrappers, gym.wrappers.common, gym.envs.registration):
    vars(module)["TimeLimit"] = TIME_LIMIT


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    th.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    th.manual_seed(0)
