"""An environment that goes wrong at a random step is named, and training can go on from there."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from models import OBJECTIVES
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from helpers import ACTION_SPACES, NoiseEnv
from sb3_ppo_variants.errors import GuardError

SMALL: dict[str, Any] = {"n_steps": 8, "batch_size": 4, "n_epochs": 1}
PLACES = ("observation", "reward", "terminated", "truncated", "info")
WRONG_SHAPES: list[tuple[int, ...]] = [(0,), (1,), (2,), (4,), (1, 3), (3, 1)]
NOTHING_LIKE_IT = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.complex_numbers(),
    st.lists(st.floats(), max_size=2),
    st.builds(object),
    st.sampled_from(WRONG_SHAPES).map(np.zeros),
    st.just(np.datetime64("NaT")),
)
NOT_FINITE = st.sampled_from([np.nan, np.inf, -np.inf, np.float32(np.nan), 1e39])
WRONG: dict[str, st.SearchStrategy[Any]] = {
    "reward": st.one_of(NOTHING_LIKE_IT, NOT_FINITE, st.dictionaries(st.text(max_size=1), st.floats(), max_size=1)),
    "terminated": NOTHING_LIKE_IT | st.integers().filter(lambda number: number not in (0, 1)),
    "truncated": NOTHING_LIKE_IT | st.floats(allow_nan=True).filter(lambda number: number not in (0, 1)),
    "info": NOTHING_LIKE_IT | st.integers() | st.lists(st.tuples(st.text(), st.text()), max_size=1),
    "observation": st.one_of(
        NOTHING_LIKE_IT,
        NOT_FINITE.map(lambda value: np.array([0, value, 0])),
        st.just(np.array([1j, 0, 0])),
        st.just(np.array(["1", "2", "3"])),
    ),
}
FAULTS = st.sampled_from(PLACES).flatmap(lambda place: st.tuples(st.just(place), WRONG[place]))
MONITORED = st.booleans()


class Errs(NoiseEnv):
    """Goes wrong once."""

    def __init__(self, at: int, place: str, value: Any):
        super().__init__(ACTION_SPACES["Discrete"])
        self._at, self._place, self._value = at, place, value
        self._taken = 0

    def step(self, action: Any) -> Any:
        self._taken += 1
        returned = list(super().step(action))
        if self._taken == self._at:
            if isinstance(self._value, BaseException):
                raise self._value
            returned[PLACES.index(self._place)] = self._value
        return tuple(returned)


def environments(n_envs: int, index: int, monitored: bool, *fault: Any) -> VecEnv:
    makers: list[Any] = [partial(NoiseEnv, ACTION_SPACES["Discrete"])] * n_envs
    makers[index] = partial(Errs, *fault)
    return DummyVecEnv([partial(monitor, make) for make in makers] if monitored else makers)


def monitor(make: Callable[[], gym.Env]) -> gym.Env:
    return Monitor(make())


def assert_trainable(model: Any) -> None:
    assert all(parameter.isfinite().all() for parameter in model.policy.parameters())
    assert model.learn(16 * model.n_envs).num_timesteps == 16 * model.n_envs


@pytest.mark.filterwarnings("ignore")
@fuzz(examples=50, endless=100)
@given(OBJECTIVES, FAULTS, st.integers(1, 3), st.integers(1, 20), MONITORED, st.booleans(), st.booleans(), st.data())
def test_wrong_outputs_are_named(
    objective: Any, fault: Any, n_envs: int, at: int, monitored: bool, normalized: bool, fast: bool, data: Any
) -> None:
    index = data.draw(st.integers(0, n_envs - 1))
    env = environments(n_envs, index, monitored, at, *fault)
    cls, own = objective
    model = cls("MlpPolicy", VecNormalize(env) if normalized else env, fast=fast, **SMALL, **own)
    with pytest.raises(GuardError) as caught:
        model.learn(20 * n_envs)
    assert fault[0] in caught.value.quantity
    assert (caught.value.env_index, caught.value.step) == (index, n_envs * (at - 1))
    assert_trainable(model)


@pytest.mark.filterwarnings("ignore")
@fuzz(examples=15, endless=100)
@given(
    error=st.sampled_from([RuntimeError("x"), ValueError("x"), KeyError("x"), OSError(5, "x"), KeyboardInterrupt()]),
    at=st.integers(1, 20),
    fast=st.booleans(),
    objective=OBJECTIVES,
)
def test_errors_pass_unchanged(error: BaseException, at: int, fast: bool, objective: Any) -> None:
    cls, own = objective
    env = environments(2, 1, False, at, "error", error)
    model = cls("MlpPolicy", env, fast=fast, **SMALL, **own)
    with pytest.raises(type(error)) as caught:
        model.learn(40)
    assert caught.value is error
    assert th.is_grad_enabled()
    assert_trainable(model)
