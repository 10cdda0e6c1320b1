"""Whatever interrupts the wait for workers, later answers belong to the commands that asked for them."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from resuming import KillAt, Killed
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from helpers import BOX, NoiseEnv, small
from sb3_ppo_variants import PPOClip, WorkerError
from sb3_ppo_variants.envs import SafeSubprocVecEnv
from sb3_ppo_variants.rollout import in_rows

N_ENVS, N_STEPS, EPISODE = 2, 8, 5
ACTIONS = 1000


class Tells(gym.Env):
    """Observes its last action and the number of steps it has taken, and may wait within a step."""

    observation_space = spaces.Box(-1, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(ACTIONS)

    def __init__(self, seconds: float = 0.0):
        self.steps = 0
        self.seconds = seconds
        self.mine = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.array([-1.0, 0.0]), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        self.steps += 1
        return np.array([action, self.steps], np.float64), 0.0, self.steps == EPISODE, False, {}

    def answer(self, number: int) -> int:
        time.sleep(self.seconds)
        return number


KINDS: dict[str, Callable[[Any], Any]] = {
    "ours": partial(SafeSubprocVecEnv, start_method="fork", n_workers=N_ENVS),
    "ours with a timeout": partial(SafeSubprocVecEnv, start_method="fork", n_workers=N_ENVS, timeout=60),
    "SB3's": partial(SubprocVecEnv, start_method="fork"),
}


def model_for(env: VecEnv) -> PPOClip:
    return PPOClip("MlpPolicy", env, n_steps=N_STEPS, batch_size=N_STEPS, n_epochs=1, seed=0, device="cpu")


def check_rollout(model: PPOClip) -> None:
    """Check that each observation follows from the action before it."""
    buffer: Any = model.rollout_buffer
    arrays = (in_rows(buffer, array) for array in (buffer.observations, buffer.actions))
    observations, actions = (array.reshape(N_ENVS, N_STEPS, -1) for array in arrays)
    begins = buffer.episode_starts.astype(bool)
    for i in range(N_ENVS):
        for step in range(1, N_STEPS):
            begun = begins[step, i]
            assert observations[i, step, 0] == (-1 if begun else actions[i, step - 1, 0])
            assert observations[i, step, 1] == (0 if begun else observations[i, step - 1, 1] + 1)


def goes_on(model: PPOClip) -> None:
    """Check that the model trains normally."""
    model.learn(N_STEPS * N_ENVS, reset_num_timesteps=False)
    check_rollout(model)


@contextmanager
def made(kind: str, *arguments: Any) -> Iterator[Any]:
    before = set(psutil.Process().children())
    env = KINDS[kind]([partial(Tells, *arguments)] * N_ENVS)
    try:
        yield env
    finally:
        start = time.monotonic()
        env.close()
        assert time.monotonic() - start < 30
        assert not set(psutil.Process().children()) - before


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_times", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_signals_at_any_time(kind: str, n_times: int) -> None:
    """Steps take no time here, so most of the time is spent on messages. No environment is lost."""
    with made(kind) as env:
        model = model_for(env)
        for seconds in np.linspace(0.2, 0.4, n_times):
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                model.learn(10**6, reset_num_timesteps=False)
            goes_on(model)


def test_a_signal_to_all_processes_of_the_terminal() -> None:
    with made("ours", 0.1) as env:
        model = model_for(env)

        def ctrl_c() -> None:
            for process in env.processes:
                os.kill(process.pid, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Timer(0.7, ctrl_c).start()
        with pytest.raises(KeyboardInterrupt):
            model.learn(1000)
        goes_on(model)


class Dawdles(Tells):
    """Takes long for one fourth step."""

    late = False

    def step(self, action: Any) -> Any:
        self.seconds = 0.0 if self.late or self.steps != 3 else 5.0
        self.late = self.late or self.seconds > 0
        return super().step(action)


@pytest.mark.slow
def test_a_time_limit_that_passed() -> None:
    env = SafeSubprocVecEnv([Tells, Dawdles], start_method="fork", timeout=2, n_workers=2)
    model = model_for(env)
    with pytest.raises(WorkerError, match=r"environment 1 did not answer within 2 seconds"):
        model.learn(N_STEPS * N_ENVS)
    with suppress(WorkerError):  # It has not answered yet.
        model.learn(N_STEPS * N_ENVS, reset_num_timesteps=False)
    time.sleep(4)
    model.learn(N_STEPS * N_ENVS, reset_num_timesteps=False)
    check_rollout(model)
    env.close()


def test_a_dropped_step_keeps_its_actions() -> None:
    """The actions of the next step come while a worker still has those of the last one before it."""
    env = SafeSubprocVecEnv([partial(Tells, 0.5), partial(Remembers, 0.5)], start_method="fork", n_workers=1)
    env.reset()
    env.step_async(np.array([1, 2]))
    env.step_async(np.array([3, 4]))
    observations: Any = env.step_wait()[0]
    np.testing.assert_array_equal(observations[:, 0], [3, 4])
    assert env.get_attr("taken", 1) == [[2, 4]]
    env.close()


class Remembers(Tells):
    """Remembers its actions."""

    def step(self, action: Any) -> Any:
        self.taken = [*getattr(self, "taken", []), int(action)]
        return super().step(action)


@pytest.mark.parametrize("make", [DummyVecEnv, partial(SafeSubprocVecEnv, start_method="fork")])
@pytest.mark.parametrize("reset_num_timesteps", [False, True])
def test_a_monitor_that_refuses_resets(reset_num_timesteps: bool, make: Any) -> None:
    env = make([lambda: Monitor(NoiseEnv(BOX), allow_early_resets=False)])
    model = small(env=env)
    with pytest.raises(Killed):
        model.learn(32, KillAt(5))
    with pytest.raises(RuntimeError, match=r"^learn\(\) begins new episodes, .* Monitor\(allow_early_resets=False\) "):
        model.learn(32, reset_num_timesteps=reset_num_timesteps)
    env.close()
