"""Any vector environment yields the same training data as SB3's DummyVecEnv."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.utils import configure_logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from helpers import collect, small
from sb3_ppo_variants.envs import GymnasiumVecEnv

N_STEPS = 24
GAMMA = 0.9
# Lengths of the episodes of each environment, in turn. Episodes of negative length are truncated, and those of length 1
# end with their first step. Environments end both at the same time and one after the other.
LENGTHS = [[3, -4, 1, 5], [-2, 3, -1, 4], [7, -7, -6, 2]]


class Scripted(gym.Env):
    """Observes the indices of its environment, episode and step, with rewards that are known in advance."""

    observation_space: spaces.Space = spaces.Box(-100, 100, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, number: int):
        self.number, self.episode, self.steps = number, -1, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._observe(), {"began": self.episode}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        length = LENGTHS[self.number][self.episode % 4]
        over = self.steps == abs(length)
        reward = 10.0 * self.episode + self.steps + int(action) / 8
        return self._observe(), reward, over and length > 0, over and length < 0, {"step": self.steps}

    def _observe(self) -> Any:
        return np.array([self.number, self.episode, self.steps], np.float32)


class ScriptedDict(Scripted):
    observation_space = spaces.Dict({"step": spaces.Discrete(10), "where": Scripted.observation_space})

    def _observe(self) -> Any:
        return {"step": self.steps, "where": super()._observe()}


class Native(VectorEnv):
    """A vector environment that has infos like ALE's and reuses one array for all observations."""

    def __init__(self, env_fns: list[Callable[[], Scripted]], autoreset_mode: AutoresetMode):
        self.envs = [make() for make in env_fns]
        self.num_envs = len(self.envs)
        self.single_observation_space, self.single_action_space = Scripted.observation_space, Scripted.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": autoreset_mode}
        self._same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self._over = np.zeros(self.num_envs, bool)
        self._observations = np.zeros((self.num_envs, 3), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for i in np.flatnonzero(mask):
            self._observations[i], _ = self.envs[i].reset()
        self._over &= ~mask
        return self._observations, self._info()

    def step(self, actions: Any) -> Any:
        rewards, terminated, truncated = np.zeros((3, self.num_envs))
        final = np.full((self.num_envs, 3), np.nan, np.float32)
        for i, env in enumerate(self.envs):
            if self._over[i]:
                self._observations[i], _ = env.reset()
                continue
            self._observations[i], rewards[i], terminated[i], truncated[i], _ = env.step(actions[i])
            if self._same_step and (terminated[i] or truncated[i]):
                final[i] = self._observations[i]
                self._observations[i], _ = env.reset()
        ends = terminated.astype(bool), truncated.astype(bool)
        if not self._same_step:
            self._over = ends[0] | ends[1]
        info = self._info() | ({"final_obs": final} if self._same_step and (ends[0] | ends[1]).any() else {})
        return self._observations, rewards, *ends, info

    def _info(self) -> dict[str, Any]:
        return {"step": np.array([env.steps for env in self.envs])}


def wrapped(env_fns: list[Callable[[], gym.Env]], autoreset_mode: AutoresetMode) -> VectorEnv:
    """Make an environment that is none of gymnasium's two classes of single environments."""
    return VectorWrapper(SyncVectorEnv(env_fns, autoreset_mode=autoreset_mode))


def adapted(make: Callable[..., VectorEnv], mode: AutoresetMode, env_fns: list[Callable[[], gym.Env]]) -> VecEnv:
    return GymnasiumVecEnv(make(env_fns, autoreset_mode=mode))


BACKENDS = [
    pytest.param(partial(adapted, make, mode), id=f"{name}-{mode.value}")
    for name, make in (("wrapped", wrapped), ("native", Native))
    for mode in AutoresetMode
]


def rollout(venv: VecEnv, fast: bool) -> dict[str, Any]:
    model = small(env=venv, n_steps=N_STEPS, batch_size=N_STEPS, gamma=GAMMA, seed=0, fast=fast)
    model.set_logger(configure_logger(0))
    collect(model)
    venv.close()
    names = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")
    return {name: getattr(model.rollout_buffer, name) for name in names}


def envs(kind: type[Scripted]) -> list[Callable[[], gym.Env]]:
    return [partial(kind, number) for number in range(3)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_buffer(backend: Callable[..., VecEnv], fast: bool) -> None:
    np.testing.assert_equal(rollout(backend(envs(Scripted)), fast), rollout(DummyVecEnv(envs(Scripted)), fast))


@pytest.mark.parametrize("backend", [param for param in BACKENDS if "native" not in str(param.id)])
def test_the_same_buffer_of_dictionaries(backend: Callable[..., VecEnv]) -> None:
    ours, theirs = rollout(backend(envs(ScriptedDict)), False), rollout(DummyVecEnv(envs(ScriptedDict)), False)
    np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_known_rewards_and_ends(backend: Callable[..., VecEnv]) -> None:
    """The second environment, worked out by hand: episodes of 2 (truncated), 3, 1 (truncated) and 4 steps."""
    venv = backend(envs(Scripted))
    observations: list[Any] = [venv.reset()]
    rewards, dones, cut_off, last = [], [], [], []
    for _ in range(10):
        observation, reward, done, infos = venv.step(np.zeros(3, int))
        observations.append(observation)
        rewards.append(reward[1])
        dones.append(done[1])
        cut_off.append(infos[1]["TimeLimit.truncated"])
        last.append(infos[1].get("terminal_observation"))
    venv.close()
    assert rewards == [1, 2, 11, 12, 13, 21, 31, 32, 33, 34]
    assert dones == [False, True, False, False, True, True, False, False, False, True]
    assert cut_off == [False, True, False, False, False, True, False, False, False, False]
    steps = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3), (4, 0)]
    np.testing.assert_array_equal([seen[1] for seen in observations], [(1, *step) for step in steps])
    ends = [step for step in last if step is not None]
    np.testing.assert_array_equal(ends, [(1, 0, 2), (1, 1, 3), (1, 2, 1), (1, 3, 4)])
