"""While a model trains, its environment is the same to callbacks and returns the same; afterwards it is as it was."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
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
from sb3_ppo_variants import NonFiniteError, PPOClip
from sb3_ppo_variants.envs import GymnasiumVecEnv, SafeSubprocVecEnv
from sb3_ppo_variants.envs.checked import checked_outputs

OBSERVATIONS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1, 1, (3,), np.float64),
    "image": spaces.Box(0, 255, (8, 8, 1), np.uint8),
    "number": spaces.Discrete(4),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": spaces.Discrete(3)}),
    "tuple": spaces.Tuple([spaces.Box(-1, 1, (3,)), spaces.Discrete(3)]),
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


@pytest.mark.parametrize("wrap", [VecNormalize, lambda env: VecFrameStack(env, 2)])
def test_the_same_steps_under_wrappers(wrap: Any) -> None:
    theirs, ours = (run(wrap(envs("vector")), checked) for checked in (False, True))
    np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("name", ["vector", "dict"])
def test_what_was_returned_does_not_change_later(name: str) -> None:
    env = envs(name)
    with checked_outputs(env):
        env.reset()
        returned = env.step(np.zeros((3, 2)))
        kept = deepcopy(returned)
        env.step(np.ones((3, 2)))
    np.testing.assert_equal(returned, kept)


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


def test_a_copy_steps_its_own_environments() -> None:
    env: Any = DummyVecEnv([partial(NoiseEnv, BOX)] * 3)
    with checked_outputs(env):
        env.reset()
        for copied in (deepcopy(env), pickle.loads(pickle.dumps(env))):
            copied.reset()
            copied.step(np.zeros((3, 2)))
            assert [single.unwrapped._steps for single in copied.envs] == [1, 1, 1]
    assert [single.unwrapped._steps for single in env.envs] == [0, 0, 0]


MAKERS: list[Any] = [partial(NoiseEnv, BOX)] * 2
ENVS: dict[str, Callable[[], Any]] = {
    "DummyVecEnv": lambda: noise_envs(BOX),
    "SubprocVecEnv": lambda: SubprocVecEnv(MAKERS, start_method="fork"),
    "SafeSubprocVecEnv": lambda: SafeSubprocVecEnv(MAKERS, start_method="fork"),
    "GymnasiumVecEnv": lambda: GymnasiumVecEnv(SyncVectorEnv(MAKERS)),
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


def seen_by_a_callback(callback: BaseCallback) -> list[Any]:
    """Return the results of queries that any environment supports."""
    env: Any = callback.training_env
    env.set_attr("mine", 3, indices=[1])
    return [
        env.get_attr("observation_space"),
        env.get_attr("mine", 1),
        env.env_is_wrapped(Monitor),
        env.reset_infos,
        type(env.unwrapped),
        (env.num_envs, env.observation_space, env.action_space, env.metadata, env.render_mode),
        env.env_method("reset", seed=5)[0][1],
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ENVS)
def test_callbacks_see_what_they_do_in_sb3(name: str) -> None:
    seen = []
    for cls in (PPO, PPOClip):
        env = ENVS[name]()
        callback = Calls(seen_by_a_callback)
        small(cls, env).learn(64, callback)
        seen.append(callback.result)
        env.close()
    assert seen[0] == seen[1]


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


@pytest.mark.parametrize("fast", [False, True])
def test_an_evaluation_with_normalization(fast: bool) -> None:
    env, eval_env = (VecNormalize(VecMonitor(noise_envs(BOX))) for _ in range(2))
    eval_env.training = False
    callback = EvalCallback(eval_env, eval_freq=16, n_eval_episodes=2, verbose=0, warn=False)
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu", fast=fast)
    model.learn(32, callback)
    assert callback.n_calls == 16 and np.isfinite(callback.last_mean_reward)
    np.testing.assert_equal(vars(eval_env.obs_rms), vars(env.obs_rms))


@pytest.mark.parametrize("name", ["DummyVecEnv", "SafeSubprocVecEnv", "three wrappers"])
def test_a_second_model_learns_on_the_same_environment(name: str) -> None:
    env = ENVS[name]()
    callback = Calls(lambda callback: small(env=callback.training_env).learn(64).num_timesteps)
    assert small(env=env).learn(128, callback).num_timesteps == 128 and callback.result == 64
    assert replaced(env) == []
    env.close()
