"""If an environment fails at a random step, the error names it, and training can continue."""

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
from models import OBJECTIVES, PATHS, along
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from helpers import ACTION_SPACES, NoiseEnv
from sb3_ppo_variants.errors import GuardError

SMALL: dict[str, Any] = {"n_steps": 8, "batch_size": 4, "n_epochs": 1}
POLICIES: dict[str, dict[str, Any]] = {
    "MlpPolicy": {},
    "MaskableMlpPolicy": {},
    "MlpLstmPolicy": {"policy_kwargs": {"lstm_hidden_size": 4}},
}
PLACES = ("observation", "reward", "terminated", "truncated", "info")
MASK = "action mask"
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
MASK_FAULTS = st.tuples(st.just(MASK), NOTHING_LIKE_IT | NOT_FINITE | st.just(np.zeros(3, bool)))


class Errs(NoiseEnv):
    """Fails once, at a given step."""

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
            if self._place not in PLACES:
                return tuple(returned)
            returned[PLACES.index(self._place)] = self._value
        return tuple(returned)


class ErrsWithMasks(Errs):
    """Allows two of three actions, or returns a wrong mask once."""

    def action_masks(self) -> Any:
        if self._place == MASK and self._taken == self._at - 1:
            self._at = 0
            return self._value
        return np.array([True, False, True])


def environments(policy: str, n_envs: int, index: int, monitored: bool, *fault: Any) -> VecEnv:
    errs = ErrsWithMasks if "Maskable" in policy else Errs
    makers: list[Any] = [partial(errs, 0, "none", None)] * n_envs
    makers[index] = partial(errs, *fault)
    return DummyVecEnv([partial(monitor, make) for make in makers] if monitored else makers)


def monitor(make: Callable[[], gym.Env]) -> gym.Env:
    return Monitor(make())


def assert_trainable(model: Any) -> None:
    assert all(parameter.isfinite().all() for parameter in model.policy.parameters())
    assert model.learn(16 * model.n_envs).num_timesteps == 16 * model.n_envs


def learner(objective: Any, policy: str, env: VecEnv) -> Any:
    cls, own = objective
    return cls(policy, env, device="cpu", **SMALL, **POLICIES[policy], **own)


@pytest.mark.filterwarnings("ignore")
@fuzz(examples=25, endless=100)
@given(
    OBJECTIVES, st.sampled_from([*POLICIES]), st.integers(1, 3), st.integers(1, 20), st.sampled_from(PATHS), st.data()
)
def test_wrong_outputs_are_named(objective: Any, policy: str, n_envs: int, at: int, path: str, data: Any) -> None:
    index, monitored = data.draw(st.integers(0, n_envs - 1)), data.draw(st.booleans())
    fault = data.draw(FAULTS | MASK_FAULTS if "Maskable" in policy else FAULTS)
    env = environments(policy, n_envs, index, monitored, at, *fault)
    model = learner(objective, policy, VecNormalize(env) if data.draw(st.booleans()) else env)
    with along(data.draw(st.sampled_from(PATHS)), model):
        with pytest.raises(GuardError) as caught:
            model.learn(20 * n_envs)
        assert fault[0] in caught.value.quantity
        assert (caught.value.env_index, caught.value.step) == (index, n_envs * (at - 1))
        assert_trainable(model)


ERRORS = st.sampled_from([RuntimeError("x"), ValueError("x"), KeyError("x"), OSError(5, "x"), KeyboardInterrupt()])


@pytest.mark.filterwarnings("ignore")
@fuzz(examples=10, endless=100)
@given(ERRORS, st.integers(1, 20), st.sampled_from(PATHS), OBJECTIVES, st.sampled_from([*POLICIES]))
def test_errors_pass_unchanged(error: BaseException, at: int, path: str, objective: Any, policy: str) -> None:
    model = learner(objective, policy, environments(policy, 2, 1, False, at, "error", error))
    with along(path, model):
        with pytest.raises(type(error)) as caught:
            model.learn(40)
        assert caught.value is error
        assert th.is_grad_enabled()
        assert_trainable(model)
