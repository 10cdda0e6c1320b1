"""While a model trains, the steps of SB3's ``VecNormalize`` match SB3's own bit for bit."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from helpers import BOX, noise_envs
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.engines.native.collector import NormalizedSteps, fast_steps

TAKEN: dict[str, spaces.Space] = {
    "single": spaces.Box(-1, 1, (3,), np.float32),
    "double": spaces.Box(-1, 1, (3,), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "many": spaces.Box(-1, 1, (37,), np.float32),
}
NOT_TAKEN: dict[str, spaces.Space] = {
    "number": spaces.Box(-1, 1, (), np.float32),
    "column": spaces.Box(-1, 1, (1,), np.float64),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "dict": spaces.Dict({"b": spaces.Box(-1, 1, (2, 2)), "c": spaces.Box(0, 9, (2,), np.uint8)}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tight": {"clip_obs": 0.5, "clip_reward": 0.3, "gamma": 0.7, "epsilon": 0.1},
    "no observations": {"norm_obs": False},
    "no rewards": {"norm_reward": False},
    "not training": {"training": False},
}


pytestmark = pytest.mark.usefixtures("natively")


def normalized(name: str, n_envs: int = 2, **settings: Any) -> VecNormalize:
    env = VecNormalize(noise_envs(BOX, {**TAKEN, **NOT_TAKEN}[name], n_envs), **settings)
    env.seed(5)
    env.reset()
    return env


def state(env: VecNormalize) -> dict[str, Any]:
    """Return the complete state of an environment."""
    others = ("venv", "class_attributes", "observation_space", "action_space", "obs_spaces")
    return {name: value for name, value in vars(env).items() if name not in others}


def plain(value: Any) -> Any:
    """Convert a value so that the results for two values are equal only if their types and bits are."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, RunningMeanStd):
        return plain(vars(value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else (type(value), value)


def assert_same(ours: Any, theirs: Any) -> None:
    assert plain(ours) == plain(theirs)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("n_envs", [1, 2, 5, 9])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", TAKEN)
def test_steps(name: str, settings: str, n_envs: int) -> None:
    theirs, ours = (normalized(name, n_envs, **SETTINGS[settings]) for _ in range(2))
    steps = fast_steps(ours)
    assert isinstance(steps, NormalizedSteps)
    for i in range(100):
        actions = np.full((n_envs, 2), i % 3, np.float32)
        returned, expected = steps.step(actions), theirs.step(actions)
        for got, wanted in zip(returned, expected, strict=True):
            assert_same(got, wanted)
        assert_same(state(ours), state(theirs))
        if i == 50:
            for env in (ours, theirs):
                env.training = not env.training


class Keeps(BaseCallback):
    """Records the state of the model's environment at each step, and changes it once."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Any] = []

    def _on_step(self) -> bool:
        env = self.model.get_vec_normalize_env()
        assert env is self.training_env and type(env) is VecNormalize
        self.states.append(plain([state(env), env.get_original_obs(), env.get_original_reward()]))
        if self.n_calls == 30:
            env.training, env.clip_obs = False, 0.1
        return True


def test_callbacks_find_and_change_the_state() -> None:
    seen = []
    for cls in (PPO, partial(PPOClip, fast=False)):
        keeps = Keeps()
        cls("MlpPolicy", normalized("single"), n_steps=20, batch_size=20, seed=0).learn(120, keeps)
        seen.append(keeps.states)
    assert len(seen[0]) == 60 and seen[1] == seen[0]


class Subclass(VecNormalize):
    pass


@pytest.mark.parametrize(
    "change", [lambda env: Subclass(env.venv), lambda env: VecFrameStack(env, 2), lambda env: env.venv]
)
def test_what_it_does_not_know_steps_by_itself(change: Callable[[VecNormalize], Any]) -> None:
    env = change(normalized("single"))
    assert fast_steps(env) is env


def test_statistics_of_another_class_update_themselves() -> None:
    class Doubled(RunningMeanStd):
        def update(self, arr: np.ndarray) -> None:
            super().update(2 * arr)

    envs = [normalized("single") for _ in range(2)]
    for env in envs:
        env.obs_rms, env.ret_rms = Doubled(shape=(3,)), Doubled(shape=())  # type: ignore[assignment]
    actions = np.ones((2, 2), np.float32)
    for _ in range(10):
        for got, wanted in zip(fast_steps(envs[0]).step(actions), envs[1].step(actions), strict=True):
            assert_same(got, wanted)


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_other_observations_are_normalised_by_sb3(name: str) -> None:
    env = normalized(name)
    assert fast_steps(env) is env


def test_statistics_that_somebody_kept_stay_as_they_were() -> None:
    env = normalized("double")
    statistics = env.obs_rms
    assert isinstance(statistics, RunningMeanStd)
    steps, kept = fast_steps(env), [statistics.mean, statistics.var, env.returns]
    copies = deepcopy(kept)
    results = []
    for _ in range(3):
        results.append(steps.step(np.ones((2, 2), np.float32)))
        copies.append(deepcopy(results[-1][:3]))
    assert_same([*kept, *(result[:3] for result in results)], copies)


CHANGES: dict[str, Callable[[VecNormalize, Any], None]] = {
    "replaced": lambda env, statistics: vars(statistics).update(mean=np.full(3, 0.5), var=np.full(3, 2.0), count=7),
    "in place": lambda env, statistics: statistics.mean.fill(0.25),
    "no variance": lambda env, statistics: vars(statistics).update(var=np.zeros(3)),
    "not a number": lambda env, statistics: statistics.mean.fill(np.nan),
    "overflow": lambda env, statistics: vars(statistics).update(mean=np.full(3, 1e200), var=np.full(3, 1e-200)),
    "whole numbers": lambda env, statistics: vars(env).update(epsilon=1, clip_obs=2),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["single", "double"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_statistics(change: str, name: str, training: bool) -> None:
    theirs, ours = (normalized(name, clip_obs=np.inf) for _ in range(2))
    actions = np.ones((2, 2), np.float32)
    steps = fast_steps(ours)
    steps.step(actions), theirs.step(actions)
    for env in (theirs, ours):
        env.training = training
        CHANGES[change](env, env.obs_rms)
    for _ in range(3):
        for got, wanted in zip(steps.step(actions), theirs.step(actions), strict=True):
            assert_same(got, wanted)
        assert_same(state(ours), state(theirs))
