"""Plain forms of values: which values have one, and which forms are refused."""

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import NatureCNN

from helpers import named
from sb3_ppo_variants.saving import plain

VALUES = [
    1,
    -1.5,
    float("inf"),
    "text",
    None,
    True,
    [1, [2.0]],
    (1, ("a",)),
    {"a": 1, 2: (3,)},
    deque([{"r": 1.0}], maxlen=3),
    np.float32(0.1),
    np.arange(6, dtype=np.int16).reshape(2, 3),
    spaces.Box(np.array([-1, 0], np.float32), np.array([1, 9], np.float32)),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.Discrete(5, start=2),
    spaces.MultiDiscrete([2, 3], start=[1, 0]),
    spaces.MultiDiscrete(np.array([[2, 3], [1, 4]])),
    spaces.MultiBinary([2, 2]),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.MultiBinary(1)}),
    ActorCriticPolicy,
    NatureCNN,
    th.nn.Tanh,
    th.optim.Adam,
]


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_plain_values_come_back(value: Any) -> None:
    back = plain.decode(json.loads(json.dumps(plain.encode(value))))
    assert type(back) is type(value)
    assert np.array_equal(back, value) if isinstance(value, np.ndarray) else back == value
    if isinstance(value, np.ndarray):
        assert back.dtype == value.dtype


NOT_PLAIN = [object(), lambda: 0, os.system, Path, np.array([object()]), {1, 2}, 1j, b"bytes"]


@pytest.mark.parametrize("value", NOT_PLAIN, ids=named)
def test_nothing_else_is_plain(value: Any) -> None:
    with pytest.raises(plain.NotPlainError):
        plain.encode(value)


@pytest.mark.parametrize(
    "form",
    [
        {"@": "class", "name": "os.system"},
        {"@": "class", "name": "subprocess.Popen"},
        {"@": "class", "name": []},
        {"@": "array", "dtype": "O", "shape": [1], "data": "AAAA"},
        {"@": "array", "dtype": "<f4", "shape": [9], "data": "AAAA"},
        {"@": "Box", "low": 0},
        {"@": "Discrete", "n": -1, "start": 0},
        {"@": "eval", "items": []},
        {"@": ["tuple"]},
        {"name": "no word"},
        {"@": "FloatSchedule", "value_schedule": "text"},
        {"@": "dict", "items": [[[], 1]]},
    ],
)
def test_a_form_that_means_nothing(form: Any) -> None:
    with pytest.raises(plain.NotPlainError):
        plain.decode(form)
