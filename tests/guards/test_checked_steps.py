"""Checked steps of a DummyVecEnv return the same as its own steps, in arrays that are just as independent."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from helpers import BOX, NoiseEnv
from sb3_ppo_variants.engines.native.library import native_test
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.guards.outputs import FiniteTest, finite_test
from sb3_ppo_variants.guards.stepping import guard_envs

OBSERVATIONS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1, 1, (3,), np.float64),
    "image": spaces.Box(0, 255, (8, 8, 1), np.uint8),
    "number": spaces.Discrete(4),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": spaces.Discrete(3)}),
}


class Tells(gym.Wrapper):
    """Returns an info whose dict and array are reused at every step.

    :param deep: whether the info contains a dict that contains a list
    """

    def __init__(self, env: gym.Env, deep: bool):
        super().__init__(env)
        self.info: dict[str, Any] = {"steps": np.zeros(1), "one": 1, "nested": {"list": [0]} if deep else {"count": 0}}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        self.info["steps"] += 1
        nested = self.info["nested"]
        if "list" in nested:
            nested["list"].append(1)
        else:
            nested["count"] += 1
        self.info["reward"] = np.float64(reward)
        return observation, reward, terminated, truncated, self.info


def envs(observation_space: spaces.Space, tells: str = "deep") -> DummyVecEnv:
    def make() -> gym.Env:
        env = Monitor(NoiseEnv(BOX, deepcopy(observation_space)))
        return Tells(env, tells == "deep") if tells else env

    return DummyVecEnv([make for _ in range(3)])


def without_times(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    infos = deepcopy(infos)
    for info in infos:
        info.get("episode", {}).pop("t", None)
    return infos


@contextmanager
def checked_steps(env: VecEnv) -> Iterator[VecEnv]:
    model: Any = SimpleNamespace(env=env, num_timesteps=0)
    with guard_envs(model):
        yield model.env


def run(env: VecEnv, checked: bool) -> list[Any]:
    with checked_steps(env) if checked else nullcontext(env) as stepped:
        stepped.seed(0)
        seen: list[Any] = [stepped.reset()]
        for action in np.random.default_rng(0).normal(size=(20, 3, 2)).astype(np.float32):
            observations, rewards, dones, infos = stepped.step(action)
            seen.append((observations, rewards, dones, without_times(infos)))
    return seen


@pytest.mark.parametrize("tells", ["", "flat", "deep"])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_the_same_steps(name: str, tells: str) -> None:
    theirs, ours = (run(envs(OBSERVATIONS[name], tells), checked) for checked in (False, True))
    np.testing.assert_equal(ours, theirs)
    assert [type(info) for info in ours[-1][3]] == [dict] * 3
    assert ours[-1][1].dtype == np.float32 and ours[-1][2].dtype == bool


@pytest.mark.parametrize("wrap", [VecNormalize, lambda env: VecFrameStack(env, 2)])
def test_under_wrappers(wrap: Any) -> None:
    theirs, ours = (run(wrap(envs(OBSERVATIONS["vector"])), checked) for checked in (False, True))
    np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("tells", ["", "flat", "deep"])
def test_what_was_returned_does_not_change_later(tells: str) -> None:
    env = envs(OBSERVATIONS["vector"], tells)
    env.reset()
    with checked_steps(env) as stepped:
        returned = stepped.step(np.zeros((3, 2)))
        kept = deepcopy(returned)
        returned[3][0]["mine"] = 1
        stepped.step(np.ones((3, 2)))
    assert "mine" not in env.buf_infos[0]
    del returned[3][0]["mine"]
    np.testing.assert_equal(returned, kept)


class Own(DummyVecEnv):
    """Overrides ``step_wait``."""

    def step_wait(self) -> VecEnvStepReturn:
        self.stepped = True
        return super().step_wait()


def test_a_step_of_its_own_is_taken_and_checked() -> None:
    own = Own([lambda: NoiseEnv(BOX, deepcopy(OBSERVATIONS["vector"]))])
    with checked_steps(own) as stepped:
        stepped.reset()
        stepped.step(np.zeros((1, 2)))
        assert own.stepped
        own.envs[0].observation_space.sample = lambda: np.full(3, np.nan)  # type: ignore[assignment, misc]
        with pytest.raises(NonFiniteError, match="observation of environment 0"):
            stepped.step(np.zeros((1, 2)))


def test_a_step_that_is_replaced_on_the_object_is_taken() -> None:
    env = envs(OBSERVATIONS["vector"])
    env.reset()
    theirs = env.step(np.zeros((3, 2)))
    env.step_wait = lambda: theirs  # type: ignore[method-assign]
    with checked_steps(env) as stepped:
        assert stepped.step(np.ones((3, 2)))[3] is theirs[3]


class OwnWhole(DummyVecEnv):
    """Overrides ``step``."""

    reward = 7.0

    def step(self, actions: Any) -> VecEnvStepReturn:
        observations, _, dones, infos = super().step(actions)
        return observations, np.full(self.num_envs, self.reward), dones, infos


@pytest.mark.parametrize("on_the_object", [False, True])
def test_a_whole_step_of_its_own_is_taken_and_checked(on_the_object: bool) -> None:
    own: Any = OwnWhole([lambda: NoiseEnv(BOX)])
    env: Any = own
    if on_the_object:
        env = DummyVecEnv([lambda: NoiseEnv(BOX)])
        env.step = own.step
    own.reset()
    with checked_steps(env) as stepped:
        stepped.reset()
        assert stepped.step(np.zeros((1, 2)))[1].tolist() == [7.0]
        own.reward = np.nan
        with pytest.raises(NonFiniteError, match="reward of environment 0"):
            stepped.step(np.zeros((1, 2)))


@pytest.mark.parametrize("test", [finite_test, native_test])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_whether_an_array_is_finite_now(test: FiniteTest, dtype: Any) -> None:
    array = np.zeros((3, 5), dtype)
    is_finite = test(array)
    limits = np.finfo(dtype)
    for value in (0.0, -1.0, limits.max, limits.min, limits.smallest_subnormal):
        array[...] = value
        assert is_finite()
    for value in (np.nan, np.inf, -np.inf):
        for place in range(array.size):
            array.flat[place] = value
            assert not is_finite()
            array.flat[place] = limits.max
            assert is_finite()


def test_too_few_actions() -> None:
    with checked_steps(envs(OBSERVATIONS["vector"])) as stepped:
        stepped.reset()
        with pytest.raises(IndexError):
            stepped.step(np.zeros((2, 2)))


def test_a_copy_steps_its_own_environments() -> None:
    env = envs(OBSERVATIONS["vector"])
    with checked_steps(env) as stepped:
        stepped.reset()
        copied = deepcopy(stepped)
        copied.step(np.zeros((3, 2)))
        steps = [[single.unwrapped._steps for single in each.envs] for each in (env, copied)]  # type: ignore[attr-defined]
    assert steps == [[0, 0, 0], [1, 1, 1]]
