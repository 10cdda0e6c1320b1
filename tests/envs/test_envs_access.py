"""Attributes and methods of the environments inside a backend."""

from functools import partial

import gymnasium as gym
import pytest
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.monitor import Monitor

from sb3_ppo_variants.envs import make_envpool_vec_env, make_gymnasium_vec_env

N_ENVS = 3


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_environments_are_within_reach(vectorization: str) -> None:
    venv = make_gymnasium_vec_env("CartPole-v1", N_ENVS, vectorization_mode=vectorization)
    assert venv.env_is_wrapped(TimeLimit) == venv.env_is_wrapped(Monitor) == [True] * N_ENVS
    assert venv.env_is_wrapped(gym.wrappers.ClipReward) == [False] * N_ENVS
    venv.set_attr("gravity", 5.0)
    assert venv.get_attr("gravity") == [5.0] * N_ENVS
    assert venv.env_method("get_wrapper_attr", "gravity") == [5.0] * N_ENVS
    venv.set_attr("limits", [1, 2])
    assert venv.get_attr("limits") == [[1, 2]] * N_ENVS
    if vectorization == "sync":
        venv.set_attr("gravity", 6.0, indices=[1])
        assert venv.get_attr("gravity") == [5.0, 6.0, 5.0]
        assert venv.env_method("get_wrapper_attr", "gravity", indices=1) == [6.0]
    else:
        for ask in (partial(venv.set_attr, "gravity", 6.0), partial(venv.env_method, "get_wrapper_attr", "gravity")):
            with pytest.raises(ValueError, match=r"indices=\[1\] must be None: AsyncVectorEnv"):
                ask(indices=[1])
    venv.close()


class Counts(gym.Wrapper):
    """Counts the calls of a method."""

    calls = 0

    def count(self) -> int:
        self.calls += 1
        return self.calls


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_method_is_an_attribute_that_is_not_called(vectorization: str) -> None:
    venv = make_gymnasium_vec_env("CartPole-v1", N_ENVS, wrapper_class=Counts, vectorization_mode=vectorization)
    venv.reset()
    assert [method.__name__ for name in ("count", "reset") for method in venv.get_attr(name)] == [
        *["count"] * N_ENVS,
        *["reset"] * N_ENVS,
    ]
    assert venv.get_attr("calls") == [0] * N_ENVS
    assert venv.env_method("count") == [1] * N_ENVS
    venv.reset()
    venv.close()


def test_what_is_one_whole_has_its_own_attributes() -> None:
    venv = make_gymnasium_vec_env("CartPole-v1", N_ENVS, vectorization_mode="vector_entry_point")
    venv.set_attr("gravity", 5.0)
    assert venv.get_attr("gravity", indices=0) == [5.0]
    with pytest.raises(AttributeError, match="no attribute 'gravitation'"):
        venv.set_attr("gravitation", 5.0)
    with pytest.raises(ValueError, match="indices"):
        venv.set_attr("gravity", 6.0, indices=[1])
    with pytest.raises(NotImplementedError, match="no single environments"):
        venv.env_method("reset")


def test_attributes_are_those_of_the_pool_in_use() -> None:
    venv = make_envpool_vec_env("CartPole-v1", N_ENVS, seed=7)
    venv.reset()
    assert venv.get_attr("config", indices=1)[0]["seed"] == 7
