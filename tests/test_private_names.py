"""Names of SB3 and gymnasium that are not documented, and where the package uses them: each has what it relies on."""

from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper
from stable_baselines3.common.vec_env.patch_gym import _patch_env
from stable_baselines3.common.vec_env.subproc_vec_env import _worker

from helpers import ACTION_SPACES, NoiseEnv, noise_envs

BOX = ACTION_SPACES["Box"]


def make() -> gym.Env:
    return NoiseEnv(BOX)


class Pipe:
    """Sends commands to a worker in the same process, and collects its answers."""

    def __init__(self, *commands: Any):
        self.commands = [*commands]
        self.answers: list[Any] = []

    def recv(self) -> Any:
        if not self.commands:
            raise EOFError
        return self.commands.pop(0)

    def send(self, answer: Any) -> None:
        self.answers.append(answer)

    def close(self) -> None:
        pass


def test_worker_of_sb3() -> None:
    """``SafeSubprocVecEnv`` runs it, and ``check_answers`` reads the answers of a reset and a step."""
    pipe: Any = Pipe(("reset", (3, {})), ("step", np.zeros(2)), ("env_method", ("get_wrapper_attr", ("spec",), {})))
    _worker(pipe, Pipe(), CloudpickleWrapper(make))  # type: ignore[arg-type]
    reset, step, spec = pipe.answers
    assert [len(reset), len(step), spec] == [2, 5, None]
    assert [type(value) for value in step[1:4]] == [float, bool, dict]


def test_patch_env_of_sb3() -> None:
    """``SafeSubprocVecEnv`` checks the outputs of the environment that it returns."""
    env = make()
    assert _patch_env(env) is env


def test_seeds_and_options_of_sb3() -> None:
    """``DummySteps.reset`` passes them on, and ``pending_seeds`` reads the seeds."""
    env = noise_envs(BOX)
    env.seed(5)
    env.set_options({"easy": True})
    assert (env._seeds, env._options) == ([5, 6], [{"easy": True}] * 2)
    env._reset_seeds()
    env._reset_options()
    assert (env._seeds, env._options) == ([None] * 2, [{}] * 2)


@pytest.mark.parametrize("name", ["_save_obs", "_obs_from_buf"])
def test_storage_of_sb3(name: str) -> None:
    """``DummySteps`` leaves environments alone that override these."""
    assert callable(getattr(DummyVecEnv, name))


def test_state_of_gymnasium() -> None:
    """``GymnasiumVecEnv`` sets it after an interrupt, so that the next command is accepted."""
    env: Any = AsyncVectorEnv([make] * 2, context="fork")
    assert env._state == AsyncState.DEFAULT
    env.reset_async()
    assert env._state == AsyncState.WAITING_RESET
    env.reset_wait()
    assert env._state == AsyncState.DEFAULT
    env.close()


def test_infos_of_gymnasium() -> None:
    """``collect`` takes the place of this method, which vector environments call for each environment in turn."""
    assert list(signature(SyncVectorEnv._add_info).parameters) == ["self", "vector_infos", "env_info", "env_num"]
    env: Any = SyncVectorEnv([make] * 2)
    seen: list[int] = []

    def add(infos: Any, info: Any, i: int) -> Any:
        seen.append(i)
        return {**infos, i: info}

    env._add_info = add
    assert list(env.reset()[1]) == seen == [0, 1]


def test_key_of_the_statistics_of_gymnasium() -> None:
    """Where episodes are reset in the same step, the statistics are moved to the info of the episode that ended."""
    assert RecordEpisodeStatistics(SyncVectorEnv([make]), stats_key="mine")._stats_key == "mine"
