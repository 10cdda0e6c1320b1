"""The infos of a vector environment are split correctly between the environments."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

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


TIMES = {"took": 2}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (np.array([1, 2, 3]), [1, 2, 3]),
        (np.eye(3), list(np.eye(3))),
        ([1, "two", None], [1, "two", None]),
        ((1, 2, 3), [1, 2, 3]),
        ([[1], [1, 2], []], [[1], [1, 2], []]),
        # Values for all environments at once.
        (3.0, [3.0] * 3),
        (np.float64(3.0), [3.0] * 3),
        (np.array(3.0), [np.array(3.0)] * 3),
        ("abc", ["abc"] * 3),
        (None, [None] * 3),
        ([1, 2], [[1, 2]] * 3),
        ([[1], [1, 2]], [[[1], [1, 2]]] * 3),
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


def test_what_all_are_told_belongs_to_each() -> None:
    venv = GymnasiumVecEnv(Tells({"it": [TIMES]}))
    venv.reset()
    venv.reset_infos[0]["it"][0]["took"] = 9
    assert venv.reset_infos[1]["it"] == [{"took": 2}] == [TIMES]


def test_some_are_told() -> None:
    venv = GymnasiumVecEnv(Tells({"it": "abc", "_it": np.array([True, False, True])}))
    venv.reset()
    assert [info.get("it") for info in venv.reset_infos] == ["abc", None, "abc"]
