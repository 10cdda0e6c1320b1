"""What all tests begin with."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
import torch as th

from helpers import in_double_precision
from sb3_ppo_variants.backends import choice
from sb3_ppo_variants.backends.native.backend import Native
from sb3_ppo_variants.backends.native.library import library

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


@pytest.fixture
def natively() -> None:
    """The fast path is that of the native library, which must have been built."""
    if library() is None:
        pytest.skip("the native library was not built")


@pytest.fixture
def over_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path is that over arrays."""
    without = tuple(backend for backend in choice.BACKENDS if not isinstance(backend, Native))
    monkeypatch.setattr(choice, "BACKENDS", without)


@pytest.fixture(params=["natively", "over_arrays"])
def each_fast_path(request: pytest.FixtureRequest) -> None:
    """The fast path is one of them."""
    request.getfixturevalue(request.param)


@pytest.fixture
def double_precision(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Lets a model compute in double precision, which SB3's preprocessing and PyTorch's Bernoulli would undo."""
    return partial(in_double_precision, monkeypatch)
