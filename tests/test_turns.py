"""Rollouts that somebody else interrupts by stepping or resetting the training environment."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from helpers import small
from sb3_ppo_variants.envs import SafeSubprocVecEnv

N_STEPS, LENGTH, REWARD, GAMMA = 16, 13, 2.0, 0.9
OTHERS = "Something other than the model's own loop"


class Numbered(gym.Env):
    """Observes the number of the episode and of the step."""

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(2)
    episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.episode, self.n = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.n += 1
        return np.array([self.episode, self.n], np.float32), REWARD, self.n == LENGTH, False, {}


class Meddling(BaseCallback):
    """Does something with the training environment in each fifth step or before rollouts, and keeps all rows."""

    def __init__(self, act: Callable[[Any], object] = print, place: str = "nowhere"):
        super().__init__()
        self.act, self.place = act, place
        self.rows: list[np.ndarray] = []
        self.starts: list[np.ndarray] = []

    def _on_rollout_start(self) -> None:
        if self.place == "rollout":
            self.act(self.model)

    def _on_step(self) -> bool:
        if self.place == "step" and self.n_calls % 5 == 0:
            self.act(self.model)
        return True

    def _on_rollout_end(self) -> None:
        buffer: Any = self.locals["rollout_buffer"]
        self.rows.extend(buffer.observations.reshape(N_STEPS, -1, 2).copy())
        self.starts.extend(buffer.episode_starts.reshape(N_STEPS, -1).copy())

    def assert_that_rows_begin_an_episode_or_follow_from_the_row_before(self) -> None:
        steps = np.diff(self.rows, axis=0)
        assert not ((steps != [0, 1]).any(axis=-1) & (np.stack(self.starts[1:]) == 0)).any()


MEDDLING: dict[str, Callable[[Any], object]] = {
    "reset": lambda model: model.get_env().reset(),
    "step": lambda model: model.get_env().step(np.zeros(model.n_envs, int)),
    "evaluate": lambda model: evaluate_policy(model, model.get_env(), 1, warn=False),
    "another model": lambda model: small(env=model.get_env()).learn(N_STEPS),
}
ENVS: dict[str, Callable[[], VecEnv]] = {
    "dummy": lambda: DummyVecEnv([Numbered] * 2),
    "normalized": lambda: VecNormalize(DummyVecEnv([Numbered]), norm_obs=False, norm_reward=False),
    "workers": partial(SubprocVecEnv, [Numbered] * 2),
    "safe workers": partial(SafeSubprocVecEnv, [Numbered] * 2),
}


@pytest.mark.parametrize("fast", ["auto", False])
@pytest.mark.parametrize("place", ["step", "rollout"])
@pytest.mark.parametrize("env", [*ENVS])
@pytest.mark.parametrize("act", [*MEDDLING])
def test_new_episodes_begin_after_others_used_the_environment(act: str, env: str, place: str, fast: Any) -> None:
    callback = Meddling(MEDDLING[act], place)
    model = small(env=ENVS[env](), fast=fast)
    with pytest.warns(UserWarning, match=OTHERS):
        model.learn(3 * N_STEPS * model.n_envs, callback)
    callback.assert_that_rows_begin_an_episode_or_follow_from_the_row_before()
    model.env.close()


def test_between_two_calls_of_learn() -> None:
    """The first row of the second call is the first of an episode that nobody else has seen."""
    callback = Meddling()
    model = small(env=Numbered()).learn(N_STEPS, callback)
    MEDDLING["evaluate"](model)  # Episode 3 and, after its end, episode 4.
    with pytest.warns(UserWarning, match=OTHERS):
        model.learn(N_STEPS, callback, reset_num_timesteps=False)
    assert callback.rows[N_STEPS].tolist() == [[5, 0]] and callback.starts[N_STEPS].tolist() == [1]


@pytest.mark.parametrize("use", [TimeLimit.reset, lambda env: EvalCallback(env, warn=False).eval_env.reset()])
def test_the_original_of_an_environment_with_a_time_limit(use: Callable[[gym.Env], object]) -> None:
    env = TimeLimit(Numbered(), 10)
    callback = Meddling(lambda model: use(env), "step")
    with pytest.warns(UserWarning, match=OTHERS):
        small(env=env).learn(3 * N_STEPS, callback)
    callback.assert_that_rows_begin_an_episode_or_follow_from_the_row_before()


@pytest.mark.parametrize("fast", ["auto", False])
def test_an_episode_that_is_cut_off_counts_as_truncated(fast: Any) -> None:
    model = small(env=Numbered(), gamma=GAMMA, gae_lambda=0.0, fast=fast, learning_rate=0.0)
    with pytest.warns(UserWarning, match=OTHERS):
        model.learn(N_STEPS, Meddling(MEDDLING["reset"], "step"))
    with th.no_grad():
        (value,) = model.policy.predict_values(th.tensor([[1.0, 5.0]])).flatten().tolist()
    # The reset comes after the fifth step, which reached (1, 5), and a gae_lambda of 0 gives r + gamma V(s').
    assert model.rollout_buffer.returns.flatten()[4] == pytest.approx(REWARD + GAMMA * value, rel=1e-5)


def test_a_run_that_a_callback_stopped_goes_on_where_it_was() -> None:
    callback = Meddling()
    model = small(env=Numbered()).learn(N_STEPS, lambda local, _: local["n_steps"] < 4)
    model.learn(N_STEPS, callback, reset_num_timesteps=False)
    assert callback.rows[0].tolist() == [[1, 5]]
