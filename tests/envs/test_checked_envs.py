"""While a model trains, its environment is the same to callbacks and returns the same; afterwards it is as it was."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorWrapper
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from helpers import BOX, IMAGE, NoiseEnv, noise_envs, small
from sb3_ppo_variants import NonFiniteError
from sb3_ppo_variants.envs import GymnasiumVecEnv, SafeSubprocVecEnv
from sb3_ppo_variants.envs.outputs import checked_outputs

OBSERVATIONS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1, 1, (3,), np.float64),
    "image": spaces.Box(0, 255, (8, 8, 1), np.uint8),
    "number": spaces.Discrete(4),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": spaces.Discrete(3)}),
}


class Tells(gym.Wrapper):
    """Returns an info whose dict, list and array are reused at every step."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.info: dict[str, Any] = {"steps": np.zeros(1), "one": 1, "flat": {"count": 0}, "nested": {"list": [0]}}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        self.info["steps"] += 1
        self.info["flat"]["count"] += 1
        self.info["nested"]["list"].append(1)
        self.info["reward"] = np.float64(reward)
        return observation, reward, terminated, truncated, self.info


def envs(name: str, vec_env: Callable[..., VecEnv] = DummyVecEnv, tells: bool = True) -> VecEnv:
    def make() -> gym.Env:
        env: gym.Env = Monitor(NoiseEnv(BOX, deepcopy(OBSERVATIONS[name])))
        return Tells(env) if tells else env

    return vec_env([make for _ in range(3)])


def run(env: VecEnv, checked: bool) -> list[Any]:
    """Return all that a reset and 20 steps return, without the times of episodes."""

    def steps() -> list[Any]:
        env.seed(0)
        seen: list[Any] = [env.reset()]
        for action in np.random.default_rng(0).normal(size=(20, 3, 2)).astype(np.float32):
            *arrays, infos = env.step(action)
            infos = deepcopy(list(infos))
            for info in infos:
                info.get("episode", {}).pop("t", None)
            seen.append((*arrays, infos))
        return seen

    if not checked:
        return steps()
    with checked_outputs(env):
        return steps()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("vec_env", [DummyVecEnv, partial(SubprocVecEnv, start_method="fork")])
@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("tells", [False, True])
def test_the_same_steps_as_sb3(name: str, tells: bool, vec_env: Any) -> None:
    made = [envs(name, vec_env, tells) for _ in range(2)]
    theirs, ours = (run(env, checked) for env, checked in zip(made, (False, True), strict=True))
    np.testing.assert_equal(ours, theirs)
    for mine, other in zip(ours[-1][1:3], theirs[-1][1:3], strict=True):
        assert mine.dtype == other.dtype
    for env in made:
        env.close()


class Own(DummyVecEnv):
    """Overrides ``step_wait``."""

    def step_wait(self) -> Any:
        self.stepped = True
        return super().step_wait()


def test_a_step_of_its_own_is_taken_and_checked() -> None:
    own = Own([lambda: NoiseEnv(BOX, deepcopy(OBSERVATIONS["vector"]))])
    with checked_outputs(own):
        own.reset()
        own.step(np.zeros((1, 2)))
        assert own.stepped
        own.envs[0].observation_space.sample = lambda: np.full(3, np.nan)  # type: ignore[assignment, misc]
        with pytest.raises(NonFiniteError, match="observation of environment 0"):
            own.step(np.zeros((1, 2)))


MAKERS: list[Any] = [partial(NoiseEnv, BOX)] * 2
ENVS: dict[str, Callable[[], Any]] = {
    "DummyVecEnv": lambda: noise_envs(BOX),
    "SubprocVecEnv": lambda: SubprocVecEnv(MAKERS, start_method="fork"),
    "SafeSubprocVecEnv": lambda: SafeSubprocVecEnv(MAKERS, start_method="fork"),
    "GymnasiumVecEnv": lambda: GymnasiumVecEnv(VectorWrapper(SyncVectorEnv(MAKERS))),
    "VecTransposeImage": lambda: VecTransposeImage(noise_envs(BOX, IMAGE)),
    "three wrappers": lambda: VecNormalize(VecFrameStack(VecMonitor(noise_envs(BOX)), 2)),
}


def replaced(env: Any) -> list[str]:
    """Return the methods that are replaced on an environment or on one that it wraps."""
    own = [name for name in ("step", "step_async", "step_wait", "reset") if name in vars(env)]
    return own + (replaced(env.venv) if isinstance(env, VecEnvWrapper) else [])


class Calls(BaseCallback):
    """Calls a function once, in the middle of a rollout, and stores its result."""

    def __init__(self, function: Callable[[Any], Any]):
        super().__init__()
        self._function = function

    def _on_step(self) -> bool:
        if self.n_calls == 20:
            self.result = self._function(self)
        return True


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", ENVS)
def test_the_environment_is_left_as_it_was(name: str, fails: bool) -> None:
    env = ENVS[name]()
    model = small(env=env)
    callback = Calls(lambda _: 1 // (not fails))
    if fails:
        with pytest.raises(ZeroDivisionError):
            model.learn(64, callback)
    else:
        model.learn(64, callback)
    assert replaced(env) == [] and model.env is env and model.get_env() is env
    env.close()
