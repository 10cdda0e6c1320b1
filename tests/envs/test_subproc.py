"""What environments in workers return is what DummyVecEnv returns, and workers are scheduled as their user wants."""

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from helpers import BOX, VECTOR, NoiseEnv, small
from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.envs import SafeSubprocVecEnv


class Reports(gym.Wrapper):
    """Adds arrays and nested values to infos."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "seen": observation, "parts": {"reward": reward}}

    def reset(self, **arguments: Any) -> Any:
        observation, info = self.env.reset(**arguments)
        return observation, {**info, "first": observation}


SPACES: dict[str, spaces.Space[Any]] = {
    "Box": BOX,
    "Discrete": spaces.Discrete(5, start=3),
    "MultiBinary": spaces.MultiBinary(4),
    "Dict": spaces.Dict({"b": BOX, "a": spaces.Discrete(4), "c": spaces.Box(0, 255, (4, 5, 3), np.uint8)}),
    "Tuple": spaces.Tuple((spaces.Discrete(4), BOX)),
    "images": spaces.Box(0, 255, (64, 64, 3), np.uint8),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("n_workers", [1, 2, 5])
@pytest.mark.parametrize("name", SPACES)
def test_all_results_are_those_of_dummy_vec_env(name: str, n_workers: int) -> None:
    env_fns: list[Any] = [lambda: Reports(NoiseEnv(BOX, deepcopy(SPACES[name])))] * 5
    ours = SafeSubprocVecEnv(env_fns, start_method="fork", n_workers=n_workers)
    theirs = DummyVecEnv(env_fns)
    assert len(ours.processes) == n_workers
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    ours.seed(4), theirs.seed(4)
    observations = ours.reset(), theirs.reset()
    n_dones = 0
    for _ in range(40):
        np.testing.assert_equal(*observations)
        np.testing.assert_equal(list(ours.reset_infos), theirs.reset_infos)
        parts = [each.values() if isinstance(each, dict) else each for each in observations]
        kinds = [[part.dtype for part in each] if name in ("Dict", "Tuple") else each.dtype for each in parts]  # type: ignore[union-attr]
        assert kinds[0] == kinds[1]
        actions = np.array([theirs.action_space.sample() for _ in range(5)])
        ours_step, theirs_step = ours.step(actions), theirs.step(actions)
        np.testing.assert_equal(ours_step[1:], theirs_step[1:])
        assert [part.dtype for part in ours_step[1:3]] == [part.dtype for part in theirs_step[1:3]]
        observations = ours_step[0], theirs_step[0]
        n_dones += int(theirs_step[2].sum())
    assert n_dones > 5
    ours.close()


class Course(NoiseEnv):
    """Has a setting, one that a setter rounds, and one of its wrapper's name. Other names raise an error."""

    def __init__(self) -> None:
        super().__init__(BOX)
        self.mine = self._level = self.shared = 0

    @property
    def level(self) -> int:
        return self._level

    @level.setter
    def level(self, value: float) -> None:
        self._level = round(value)

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def seen(self) -> tuple[int, int, int]:
        return self.mine, self.level, self.shared


class Shares(gym.Wrapper):
    shared, of_wrapper = 1, 2


@pytest.mark.parametrize("indices", [None, 1, [1, 2]])
def test_the_innermost_environment_gets_an_attribute(indices: Any) -> None:
    env = SafeSubprocVecEnv([lambda: Monitor(Shares(Course()))] * 3, start_method="fork", n_workers=2)
    for name, value in {"mine": 5, "level": 2.9, "shared": 7, "of_wrapper": 9}.items():
        env.set_attr(name, value, indices)
    chosen = range(3) if indices is None else np.atleast_1d(indices)
    assert env.env_method("seen") == [(5, 3, 7) if i in chosen else (0, 0, 0) for i in range(3)]
    assert env.get_attr("of_wrapper") == [9 if i in chosen else 2 for i in range(3)]
    assert env.has_attr("level") and not env.has_attr("nobody's")
    with pytest.raises(AttributeError, match="nobody's"):
        env.set_attr("nobody's", 1, indices)
    assert not env.has_attr("nobody's")
    env.close()


def test_environments_of_several_workers_are_asked_in_any_order() -> None:
    env = SafeSubprocVecEnv([Course] * 5, start_method="fork", n_workers=2)
    for i in range(5):
        env.set_attr("mine", i, indices=i)
    indices: Any
    for indices in ([4, 0, 2], [1, 1], [-1], 3, range(5), None, []):
        expected = list(range(5))
        expected = expected if indices is None else [expected[i] for i in ([indices] if indices == 3 else indices)]
        assert env.get_attr("mine", indices) == expected
        assert env.env_method("get_wrapper_attr", "mine", indices=indices) == expected
    with pytest.raises(IndexError):
        env.get_attr("mine", 5)
    assert not env.has_attr("nothing")
    with pytest.raises(ArgumentError, match="actions: 4 actions for 5 environments"):
        env.step(np.zeros((4, 2)))
    env.close()


class Echo(NoiseEnv):
    """Keeps its actions, and returns the first number of each as the reward."""

    def __init__(self) -> None:
        super().__init__(BOX)
        self.kept: list[np.ndarray] = []

    def step(self, action: Any) -> Any:
        self.kept.append(action)
        observation, _, _, _, info = super().step(action)
        return observation, float(action[0]), False, False, info

    def has_kept(self) -> list[float]:
        return [float(action[0]) for action in self.kept]


@pytest.mark.parametrize(
    "start_method", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("forkserver", "spawn"))]
)
def test_arrays_do_not_change_in_later_steps(start_method: str) -> None:
    """Neither do those of the user, nor the actions that an environment keeps."""
    env = SafeSubprocVecEnv([Echo] * 3, start_method=start_method, n_workers=2)
    env.reset()
    results = []
    for i in range(4):
        # Those of the type of the space are written to shared memory, and the others sent.
        actions = np.full((3, 2), i / 8, np.float32 if i % 2 else np.float64)
        results.append(env.step(actions)[:3])
    copies = deepcopy(results)
    env.step(np.ones((3, 2), np.float32))
    np.testing.assert_equal(results, copies)
    assert [rewards.tolist() for _, rewards, _ in results] == [[i / 8] * 3 for i in range(4)]
    assert env.env_method("has_kept") == [[0, 1 / 8, 2 / 8, 3 / 8, 1]] * 3
    env.close()


class Earns(gym.Env):
    """Earns a Python integer for each step, until a time limit ends the episode after 4."""

    observation_space = VECTOR
    action_space = BOX
    taken = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        self.taken = 0
        return np.zeros(VECTOR.shape, VECTOR.dtype), {}

    def step(self, action: Any) -> tuple[Any, int, bool, bool, dict]:
        self.taken += 1
        return np.ones(VECTOR.shape, VECTOR.dtype), 1, False, self.taken == 4, {}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("cls", [DummyVecEnv, SubprocVecEnv, SafeSubprocVecEnv])
def test_integer_rewards_keep_the_value_at_a_time_limit(cls: Any, fast: bool) -> None:
    env = cls([Earns] * 2)
    model = small(PPOClip, env, n_steps=8, fast=fast)
    value = model.policy.predict_values(th.ones(1, *VECTOR.shape)).item()
    model.learn(16)
    expected = np.ones((8, 2), np.float32)
    expected[[3, 7]] += 0.99 * value  # gamma V(s) where the time limit cuts the return off
    np.testing.assert_allclose(model.rollout_buffer.rewards, expected, rtol=1e-6)
    assert abs(value) > 1e-6
    env.close()
