"""Steps of SB3's ``VecNormalize`` while a model trains are, to the bit, those of SB3."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from helpers import ACTION_SPACES, noise_envs
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.rollouts.normalized import NormalizedSteps, fast_steps

BOX = ACTION_SPACES["Box"]
OBSERVATIONS: dict[str, spaces.Space] = {
    "single": spaces.Box(-1, 1, (3,), np.float32),
    "double": spaces.Box(-1, 1, (3,), np.float64),
    "number": spaces.Box(-1, 1, (), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "dict": spaces.Dict({"b": spaces.Box(-1, 1, (2, 2)), "c": spaces.Box(0, 9, (2,), np.uint8)}),
    "some keys": spaces.Dict({"b": spaces.Box(-1, 1, (2, 2)), "a": spaces.Discrete(3)}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tight": {"clip_obs": 0.5, "clip_reward": 0.3, "gamma": 0.7, "epsilon": 0.1},
    "no observations": {"norm_obs": False},
    "no rewards": {"norm_reward": False},
    "not training": {"training": False},
}


def normalized(name: str, n_envs: int = 2, **settings: Any) -> VecNormalize:
    keys: dict[str, Any] = {"norm_obs_keys": ["b"]} if name == "some keys" and settings.get("norm_obs", True) else {}
    env = VecNormalize(noise_envs(BOX, OBSERVATIONS[name], n_envs), **keys, **settings)
    env.seed(5)
    env.reset()
    return env


def state(env: VecNormalize) -> dict[str, Any]:
    """All that an environment knows."""
    others = ("venv", "class_attributes", "observation_space", "action_space", "obs_spaces")
    return {name: value for name, value in vars(env).items() if name not in others}


def plain(value: Any) -> Any:
    """Equal to that of another value only if both have the same types and bits."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, RunningMeanStd):
        return plain(vars(value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else (type(value), value)


def assert_same(ours: Any, theirs: Any) -> None:
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("n_envs", [1, 2, 5])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", OBSERVATIONS)
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
    """Keeps the state of the environment that the model has, at each step, and changes it once."""

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


def patched(env: VecNormalize) -> VecNormalize:
    env.normalize_reward = lambda reward: reward  # type: ignore[method-assign]
    return env


@pytest.mark.parametrize(
    "change",
    [lambda env: Subclass(env.venv), patched, lambda env: VecFrameStack(env, 2), lambda env: env.venv],
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
