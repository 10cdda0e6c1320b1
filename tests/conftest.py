"""What all tests begin with."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.policies
import torch as th
from stable_baselines3.common.distributions import BernoulliDistribution

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
    preprocess: Any = stable_baselines3.common.policies.preprocess_obs

    log_prob: Any = BernoulliDistribution.log_prob

    def double(*args: Any, **kwargs: Any) -> Any:
        observation = preprocess(*args, **kwargs)
        if isinstance(observation, dict):
            return {key: value.double() for key, value in observation.items()}
        return observation.double()

    def convert(model: Any) -> None:
        monkeypatch.setattr(BernoulliDistribution, "log_prob", lambda self, actions: log_prob(self, actions.double()))
        monkeypatch.setattr(stable_baselines3.common.policies, "preprocess_obs", double)
        model.policy.double()
        model.rollout_buffer.old_parameters = None  # Those of the policy in double precision are found anew.
        for name in ("values", "log_probs", "advantages", "returns"):
            setattr(model.rollout_buffer, name, getattr(model.rollout_buffer, name).astype(np.float64))

    return convert
