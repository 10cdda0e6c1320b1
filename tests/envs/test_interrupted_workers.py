"""Whatever interrupts the wait for workers, later answers belong to the commands that asked for them."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from sb3_ppo_variants import PPOClip, WorkerError
from sb3_ppo_variants.envs import GymnasiumVecEnv, SafeSubprocVecEnv
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


def over_gymnasium(shared_memory: bool, env_fns: Any) -> GymnasiumVecEnv:
    mode = AutoresetMode.NEXT_STEP if shared_memory else AutoresetMode.SAME_STEP
    return GymnasiumVecEnv(AsyncVectorEnv(env_fns, shared_memory, context="fork", autoreset_mode=mode))


KINDS: dict[str, Callable[[Any], Any]] = {
    "ours": partial(SafeSubprocVecEnv, start_method="fork", n_workers=N_ENVS),
    "ours with a timeout": partial(SafeSubprocVecEnv, start_method="fork", n_workers=N_ENVS, timeout=60),
    "ours in one worker": partial(SafeSubprocVecEnv, start_method="fork", n_workers=1),
    "SB3's": partial(SubprocVecEnv, start_method="fork"),
    "gymnasium's": partial(over_gymnasium, True),
    "gymnasium's through pipes": partial(over_gymnasium, False),
    "none": DummyVecEnv,
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


def goes_on(model: PPOClip) -> bool:
    """Check that the model either trains normally, or refuses with the expected error; return whether it trained."""
    try:
        model.learn(N_STEPS * N_ENVS, reset_num_timesteps=False)
    except WorkerError as error:
        assert "was cut off in the middle of a message: close its vectorised environment and make a new one" in str(
            error
        )
        return False
    check_rollout(model)
    return True


# The files whose code exchanges messages.
FILES = (
    *("subproc_vec_env.py", "async_vector_env.py", "connection.py"),
    *("envs/adapter.py", "envs/subproc.py", "envs/in_worker.py", "guards/workers.py", "guards/stepping.py"),
)


@contextmanager
def interrupt_at(place: int | None) -> Iterator[list[int]]:
    """Raise a KeyboardInterrupt at a line of the code that exchanges messages, and yield the count of such lines."""
    count = [0]

    def line(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            count[0] += 1
            if count[0] == place:
                raise KeyboardInterrupt
        return line

    def call(frame: FrameType, event: str, argument: object) -> Any:
        return line if frame.f_code.co_filename.endswith(FILES) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield count
    finally:
        sys.settrace(before)


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
@pytest.mark.parametrize("n_places", [7, pytest.param(200, marks=pytest.mark.slow)])
def test_at_lines_of_a_step(kind: str, n_places: int) -> None:
    with made(kind) as env:
        model = model_for(env).learn(N_STEPS * N_ENVS)
        with interrupt_at(None) as count:
            model.learn(N_STEPS * N_ENVS, reset_num_timesteps=False)
        check_rollout(model)
        lines = range(2 * count[0] // N_STEPS, 4 * count[0] // N_STEPS)
        places = random.Random(0).sample(lines, min(n_places, len(lines)))
    left, refused = [*places], 0
    while left:
        with made(kind) as env:
            model = model_for(env).learn(N_STEPS * N_ENVS)
            going_on = True
            while left and going_on:
                with pytest.raises(KeyboardInterrupt), interrupt_at(left.pop()):
                    model.learn(N_STEPS * N_ENVS, reset_num_timesteps=False)
                going_on = goes_on(model)
            refused += not going_on
    assert refused < len(places)


ASKS: dict[str, Callable[[Any], Any]] = {
    "get_attr": lambda env: env.get_attr("mine"),
    "set_attr": lambda env: env.set_attr("mine", 1),
    "env_method": lambda env: env.env_method("answer", 1),
    "has_attr": lambda env: env.has_attr("mine"),
    "env_is_wrapped": lambda env: env.env_is_wrapped(gym.Wrapper),
    "reset": lambda env: env.reset(),
    "step": lambda env: env.step(np.array([3, 4])),
}


def answers(env: Any, number: int) -> bool:
    """Check that the environment answers correctly or refuses with the expected error; return whether it answered."""
    try:
        assert env.env_method("answer", number) == [number] * N_ENVS
        env.set_attr("mine", number)
        assert env.get_attr("mine") == [number] * N_ENVS
        env.reset()
        np.testing.assert_array_equal(env.step(np.array([5, 6]))[0], [[5, 1], [6, 1]])
    except WorkerError as error:
        assert "in the middle of a message" in str(error)
        return False
    return True


@pytest.mark.sampled(4)
@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("kind", ["ours", "gymnasium's"])
@pytest.mark.parametrize("n_places", [5, pytest.param(1000, marks=pytest.mark.slow)])
def test_at_lines_of_all_that_is_asked(kind: str, ask: str, n_places: int) -> None:
    with made(kind) as env:
        env.reset()
        with interrupt_at(None) as count:
            ASKS[ask](env)
    left, refused = random.Random(0).sample(range(1, count[0] + 1), min(n_places, count[0])), 0
    while left:
        with made(kind) as env:
            env.reset()
            going_on = True
            while left and going_on:
                with pytest.raises(KeyboardInterrupt), interrupt_at(left.pop()):
                    ASKS[ask](env)
                going_on = answers(env, len(left))
            refused += not going_on
    assert refused < count[0]


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
            assert goes_on(model)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("ours", "gymnasium's") else pytest.mark.slow) for kind in KINDS]
)
def test_a_signal_while_it_waits(kind: str) -> None:
    """Nearly all of the time is spent waiting. No environment is lost."""
    with made(kind, 0.1) as env:
        model = model_for(env)
        for seconds in (0.7, 1.1):
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                model.learn(1000, reset_num_timesteps=False)
            assert goes_on(model)


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
        assert goes_on(model)


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


class Large(Tells):
    """Returns more data than a pipe can hold."""

    def step(self, action: Any) -> Any:
        *others, info = super().step(action)
        return *others, {**info, "large": np.zeros(2**22)}


class LargeAndLate(Tells):
    """Takes half a second for an answer that is more than a pipe can hold."""

    def answer(self, number: int) -> Any:
        time.sleep(0.5)
        return np.full(2**20, number)


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise an error if what is done inside takes this long."""

    def fails(*_: object) -> None:
        raise AssertionError(f"still at it after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, fails)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "make",
    [
        partial(SafeSubprocVecEnv, start_method="fork", n_workers=1),
        partial(SafeSubprocVecEnv, start_method="fork", n_workers=1, timeout=5),
        partial(over_gymnasium, False),
    ],
    ids=["ours", "ours with a timeout", "gymnasium's"],
)
def test_a_large_command_after_a_large_answer_that_nobody_received(make: Callable[[Any], Any]) -> None:
    """A worker that still sends its answer reads nothing, so the command would not fit into the pipe."""
    env = make([LargeAndLate] * N_ENVS)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        env.env_method("answer", 1)
    with ended_after(30):
        env.set_attr("mine", np.arange(2**20))
    np.testing.assert_array_equal(env.get_attr("mine"), [np.arange(2**20)] * N_ENVS)
    env.close()


def test_a_worker_that_stops_in_the_middle_of_a_message() -> None:
    env = SafeSubprocVecEnv([Large] * 2, start_method="fork", timeout=2, n_workers=2)
    env.reset()
    env.step_async(np.zeros(2, int))
    assert env.remotes[1].poll(60)  # The worker has begun its message.
    os.kill(env.processes[1].pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match="environment 1 did not answer within 2 seconds"):
        env.step_wait()
    with pytest.raises(WorkerError, match="environment 1 was cut off in the middle of a message"):
        env.reset()
    env.close()
    assert not any(process.is_alive() for process in env.processes)


def test_a_worker_that_does_not_take_a_command() -> None:
    env = SafeSubprocVecEnv([Tells], start_method="fork", timeout=1)
    os.kill(env.processes[0].pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match="environment 0 did not answer within 1 seconds"):
        env.set_attr("mine", np.zeros(2**22))
    env.close()


def test_an_environment_of_sb3_is_left_as_it_was() -> None:
    with made("SB3's") as env:
        pipes = env.remotes
        model_for(env).learn(N_STEPS * N_ENVS)
        assert env.remotes == pipes
