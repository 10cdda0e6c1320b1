"""The infos of a vector environment are split correctly between the environments."""

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.envs import GymnasiumVecEnv


class Tells(VectorEnv):
    """Returns the given info for its three environments."""

    num_envs = 3
    single_observation_space: Any = spaces.Box(0, 9, (1,), np.float32)
    single_action_space: Any = spaces.Discrete(2)

    def __init__(self, info: dict[str, Any]):
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.info = info

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        return np.zeros((3, 1), np.float32), self.info

    def step(self, actions: Any) -> Any:
        return np.zeros((3, 1), np.float32), np.ones(3), np.zeros(3, bool), np.zeros(3, bool), self.info


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (np.array([1, 2, 3]), [1, 2, 3]),
        (np.eye(3), list(np.eye(3))),
        ([1, "two", None], [1, "two", None]),
        ([[1], [1, 2], []], [[1], [1, 2], []]),
        # Values for all environments at once.
        (3.0, [3.0] * 3),
        (np.array(3.0), [np.array(3.0)] * 3),
        ("abc", ["abc"] * 3),
        ([1, 2], [[1, 2]] * 3),
        (np.arange(4), [np.arange(4)] * 3),
        ({"mean": 3.0, "each": np.arange(3)}, [{"mean": 3.0, "each": i} for i in range(3)]),
    ],
)
def test_each_is_told(told: Any, expected: list[Any]) -> None:
    venv = GymnasiumVecEnv(Tells({"it": told}))
    venv.reset()
    infos = venv.step(np.zeros(3, int))[3]
    for told_each in (venv.reset_infos, infos):
        np.testing.assert_equal([info["it"] for info in told_each], expected)


def test_some_are_told() -> None:
    venv = GymnasiumVecEnv(Tells({"it": "abc", "_it": np.array([True, False, True])}))
    venv.reset()
    assert [info.get("it") for info in venv.reset_infos] == ["abc", None, "abc"]


# The infos of two environments, which differ in type, shape and keys.
UNLIKE: dict[str, tuple[dict, dict]] = {
    "numbers": ({"progress": 0, "ok": False, "limit": 1.0}, {"progress": 0.5, "ok": 7, "limit": None}),
    "arrays": ({"path": np.zeros(1)}, {"path": np.ones(2)}),
    "dicts": ({"told": {"a": 1}}, {"told": 3.0}),
    "keys": ({0: 1.0, "a": 1.5, "_a": 2.5}, {0: 2.0, "b": 3.5}),
}


class Says(gym.Env):
    """Returns the same arrays at every step, and changes one of them; episodes of two steps."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, info: dict):
        self.info = {**deepcopy(info), "count": np.zeros(1)}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        self.steps = 0
        return np.zeros(1, np.float32), {**deepcopy(self.info), "begins": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        self.info["count"] += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 2, False, {**self.info}


def told(venv: VecEnv) -> list[Any]:
    """Return the infos of a reset and some steps, and the types of their values."""
    venv.reset()
    infos = deepcopy([*venv.reset_infos])
    for _ in range(5):
        infos += [*venv.step(np.zeros(2, int))[3], *deepcopy(venv.reset_infos)]
    venv.close()
    return [[{key: (type(value), value) for key, value in info.items()} for info in infos]]
