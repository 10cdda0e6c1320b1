"""If a worker fails, the error names it, its environment closes in time, and no process is left."""

import ctypes
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from fresh import ended, run_code
from helpers import BOX, VECTOR, NoiseEnv, flat_weights, small
from sb3_ppo_variants import ArgumentError, PPOClip, WorkerError
from sb3_ppo_variants.envs import GymnasiumVecEnv, SafeSubprocVecEnv

N_ENVS = 3


class LostTheGame(Exception):
    pass


def raises() -> None:
    raise LostTheGame("at chess")


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "raise": (raises, r"raised an error:\nTraceback(.|\n)*in step(.|\n)*LostTheGame: at chess"),
    "exit": (partial(sys.exit, 3), r"raised an error:\nTraceback(.|\n)*SystemExit: 3"),
    "exit at once": (partial(os._exit, 3), "exited with code 3"),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by signal 9"),
    "hang": (partial(time.sleep, 1000), "did not answer within 1 seconds"),
}


class Fails(NoiseEnv):
    """Fails at its third step, at its second reset, or when it is created."""

    def __init__(self, name: str, place: str):
        super().__init__(BOX)
        self._fail, _ = FAULTS[name]
        self._place = place
        self._resets = self._taken = 0
        if place == "make":
            self._fail()

    def reset(self, **arguments: Any) -> Any:
        self._resets += 1
        if self._place == "reset" and self._resets == 2:
            self._fail()
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self._taken += 1
        if self._place == "step" and self._taken == 3:
            self._fail()
        return super().step(action)


def processes_of(env: Any) -> list[psutil.Process]:
    return [psutil.Process(process.pid) for process in env.processes]


def closes_in_time(env: VecEnv, processes: list[psutil.Process]) -> None:
    start = time.monotonic()
    env.close()
    assert time.monotonic() - start < 5
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def fails_by_name(name: str, place: str, index: int, start_method: str, timeout: float) -> None:
    env_fns: list[Any] = [partial(NoiseEnv, BOX)] * N_ENVS
    env_fns[index] = partial(Fails, name, place)
    env = SafeSubprocVecEnv(env_fns, start_method=start_method, timeout=timeout, n_workers=2)
    processes = processes_of(env)
    model = PPOClip("MlpPolicy", VecNormalize(env), n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    start = time.monotonic()
    _, message = FAULTS[name]
    pattern = message.replace("in step", f"in {place}").replace("within 1", f"within {timeout:g}")
    with pytest.raises(WorkerError, match=f"the worker of environment {index} {pattern}") as caught:
        model.learn(100)
    assert time.monotonic() - start < 30
    assert caught.value.env_index == index
    closes_in_time(env, processes)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("index", range(N_ENVS))
@pytest.mark.parametrize("place", ["step", "reset"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_worker_that_fails(name: str, place: str, index: int) -> None:
    fails_by_name(name, place, index, "fork", timeout=1)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(N_ENVS))
@pytest.mark.parametrize("place", ["step", "reset"])
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_worker_that_fails_however_it_was_started(start_method: str, name: str, place: str, index: int) -> None:
    fails_by_name(name, place, index, start_method, timeout=20)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("index", range(N_ENVS))
@pytest.mark.parametrize("name", FAULTS)
def test_an_environment_that_can_not_be_made(name: str, index: int) -> None:
    env_fns: list[Any] = [partial(NoiseEnv, BOX)] * N_ENVS
    env_fns[index] = partial(Fails, name, "make")
    before = set(psutil.Process().children())
    start = time.monotonic()
    with pytest.raises(WorkerError, match=f"the worker of environment {index} "):
        SafeSubprocVecEnv(env_fns, start_method="fork", timeout=1)
    assert time.monotonic() - start < 6
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize("name", ["raise", "exit", "exit at once", "kill"])
def test_a_worker_of_sb3_is_named_too(name: str) -> None:
    env = SubprocVecEnv([partial(Fails, name, "step")], start_method="fork")
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    with pytest.raises(WorkerError, match=r"the worker of environment 0 .*; SafeSubprocVecEnv"):
        model.learn(100)


@pytest.mark.parametrize("name", ["exit at once", "kill"])
def test_a_worker_of_gymnasium_is_named_too(name: str) -> None:
    env_fns: list[Any] = [partial(NoiseEnv, BOX), partial(Fails, name, "step"), partial(NoiseEnv, BOX)]
    inner = AsyncVectorEnv(env_fns, context="fork")
    env, processes = GymnasiumVecEnv(inner), processes_of(inner)
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    for _ in range(2):
        with pytest.raises(WorkerError, match=f"the worker of environment 1 {FAULTS[name][1]}"):
            model.learn(100)
    closes_in_time(env, processes)


@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")
def test_a_worker_of_gymnasium_that_raised_an_error() -> None:
    inner = AsyncVectorEnv([partial(NoiseEnv, BOX), partial(Fails, "raise", "step")], context="fork")
    env, processes = GymnasiumVecEnv(inner), processes_of(inner)
    model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    with pytest.raises(LostTheGame, match="at chess"):
        model.learn(100)
    with pytest.raises(WorkerError, match="the worker of environment 1 exited with code 0"):
        model.learn(100)
    closes_in_time(env, processes)


class Slow(NoiseEnv):
    """Answers late, and with more data than a pipe can hold."""

    def step(self, action: Any) -> Any:
        time.sleep(0.5)
        *others, info = super().step(action)
        return *others, {**info, "large": np.zeros(2**20)}


def test_closing_in_the_middle_of_a_step() -> None:
    env = SafeSubprocVecEnv([partial(Slow, BOX)] * N_ENVS, start_method="fork", n_workers=N_ENVS)
    processes = processes_of(env)
    env.reset()
    env.step_async(np.zeros((N_ENVS, 2)))
    closes_in_time(env, processes)
    env.close()  # A second call does nothing.
    assert [process.exitcode for process in env.processes] == [0] * N_ENVS


def test_it_is_the_environment_of_sb3_in_all_else() -> None:
    weights = []
    makers: list[Any] = [DummyVecEnv, partial(SafeSubprocVecEnv, start_method="fork", n_workers=2)]
    for make in makers:
        env = make([lambda: NoiseEnv(BOX, deepcopy(VECTOR))] * N_ENVS)
        model = PPOClip("MlpPolicy", env, n_steps=16, batch_size=16, seed=0, device="cpu").learn(96)
        weights.append(flat_weights(model))
        env.set_attr("mine", 3, indices=[1])
        assert env.has_attr("action_space") and env.get_attr("mine", 1) == [3]
        assert env.env_method("get_wrapper_attr", "_steps") == [4] * N_ENVS
        assert env.env_is_wrapped(Monitor) == [False] * N_ENVS
        env.close()
    assert th.equal(*weights)


def test_learning_after_closing() -> None:
    env = SafeSubprocVecEnv([partial(NoiseEnv, BOX)], start_method="fork")
    model = PPOClip("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1)
    env.close()
    with pytest.raises(WorkerError, match=r"^the worker of environment 0 has ended, because close\(\) was called"):
        model.learn(8)


class Large(NoiseEnv):
    """Returns more data than a pipe can hold."""

    def step(self, action: Any) -> Any:
        *others, info = super().step(action)
        return *others, {**info, "large": np.zeros(2**21)}


def test_closing_while_a_worker_is_stopped_in_the_middle_of_an_answer() -> None:
    env = SafeSubprocVecEnv([partial(Large, BOX)], start_method="fork")
    processes = processes_of(env)
    env.reset()
    env.step_async(np.zeros((1, 2)))
    assert env.remotes[0].poll(60)
    os.kill(processes[0].pid, signal.SIGSTOP)
    closes_in_time(env, processes)


def test_waiting_for_a_step_that_another_command_has_replaced() -> None:
    env = SafeSubprocVecEnv([partial(NoiseEnv, BOX)], start_method="fork")
    env.reset()
    env.step_async(np.zeros((1, 2)))
    env.get_attr("spec")
    with pytest.raises(WorkerError, match=r"environment 0 has no command to answer: call step_async\(\) before"):
        env.step_wait()
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("error", [TimeoutError, OSError])
def test_an_error_of_a_handler_of_signals_passes_on(error: type[OSError]) -> None:
    def fails(*_: Any) -> None:
        raise error("of the handler")

    env = SafeSubprocVecEnv([partial(Fails, "hang", "step")], start_method="fork", timeout=60)
    env.reset()
    handler = signal.signal(signal.SIGALRM, fails)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(error, match="of the handler"):
            for _ in range(3):
                env.step(np.zeros((1, 2)))
    finally:
        signal.signal(signal.SIGALRM, handler)
        env.close()


@pytest.mark.parametrize("timeout", [np.float32(60), 1_000_000])
def test_other_timeouts(timeout: Any) -> None:
    env = SafeSubprocVecEnv([partial(NoiseEnv, BOX)], start_method="fork", timeout=timeout)
    env.reset()
    env.close()


@pytest.mark.parametrize("timeout", [1e7, 1e300, 10**400])
def test_a_timeout_that_is_too_long(timeout: Any) -> None:
    with pytest.raises(ArgumentError, match=r"timeout=.*; None waits forever|timeout=.* is not allowed"):
        SafeSubprocVecEnv([partial(NoiseEnv, BOX)], timeout=timeout)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "5"])
def test_a_wrong_timeout(timeout: Any) -> None:
    with pytest.raises(ArgumentError, match=r"timeout=.* is not allowed; allowed: a finite number > 0, or None"):
        SafeSubprocVecEnv([partial(NoiseEnv, BOX)], timeout=timeout)


def test_no_environments() -> None:
    with pytest.raises(ArgumentError, match=r"env_fns=\[\] is not allowed; allowed: a list of at least one function"):
        SafeSubprocVecEnv([])


def test_environments_instead_of_functions() -> None:
    with pytest.raises(ArgumentError, match=r"env_fns=.* is not allowed; allowed: .*each of which creates an env"):
        SafeSubprocVecEnv([NoiseEnv(BOX)])  # type: ignore[list-item]


def test_a_worker_that_takes_too_long_to_start() -> None:
    with pytest.raises(WorkerError, match=r"environment 0 was not ready within 0\.5 seconds: it may still import"):
        SafeSubprocVecEnv([partial(time.sleep, 1000)], timeout=0.5)  # type: ignore[list-item]


def test_an_unknown_start_method() -> None:
    with pytest.raises(ArgumentError, match=r"start_method='thread' is not allowed; allowed: .*'spawn'.*, or None"):
        SafeSubprocVecEnv([partial(NoiseEnv, BOX)], start_method="thread")


def test_a_worker_that_can_not_be_started() -> None:
    """The workers before it exit immediately, not only when the error is garbage-collected."""
    lock: Any = threading.Lock()
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(TypeError, match="pickle"):
        SafeSubprocVecEnv([partial(NoiseEnv, BOX), partial(NoiseEnv, lock)], start_method="spawn", n_workers=2)
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [process for process in left if "spawn_main" in " ".join(process.cmdline())]


class HangsInC(NoiseEnv):
    """Hangs in a step, and keeps all threads of Python from running."""

    def step(self, action: Any) -> Any:
        ctypes.PyDLL(None).sleep(1000)


IN_C = pytest.param("HangsInC(BOX)", marks=pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"))


@pytest.mark.parametrize("hanging", ["Fails('hang', 'step')", IN_C])
def test_workers_do_not_outlive_a_parent_that_is_killed(hanging: str) -> None:
    """This holds even if they hang."""
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from contextlib import suppress
        from functools import partial
        import numpy as np
        from helpers import NoiseEnv
        from test_workers import BOX, Fails, HangsInC
        from sb3_ppo_variants import WorkerError
        from sb3_ppo_variants.envs import SafeSubprocVecEnv
        env_fns = [lambda: {hanging}, partial(NoiseEnv, BOX)]
        env = SafeSubprocVecEnv(env_fns, start_method="fork", timeout=1, n_workers=2)
        print(*[process.pid for process in env.processes], flush=True)
        env.reset()
        with suppress(WorkerError):
            for _ in range(3):
                env.step(np.zeros((2, 2)))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    run = ended(run_code, textwrap.dedent(script))
    assert run.returncode == -signal.SIGKILL
    workers = [int(pid) for pid in run.stdout.split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, workers)):
        assert time.monotonic() < deadline, "workers are left"
        time.sleep(0.1)


class Reports(gym.Wrapper):
    """Adds arrays and nested values to infos."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "seen": observation, "parts": {"reward": reward}}

    def reset(self, **arguments: Any) -> Any:
        observation, info = self.env.reset(**arguments)
        return observation, {**info, "first": observation}


SPACES: dict[str, spaces.Space[Any]] = {
    "Box": BOX,
    "Discrete": spaces.Discrete(5, start=3),
    "MultiBinary": spaces.MultiBinary(4),
    "Dict": spaces.Dict({"b": BOX, "a": spaces.Discrete(4), "c": spaces.Box(0, 255, (4, 5, 3), np.uint8)}),
    "Tuple": spaces.Tuple((spaces.Discrete(4), BOX)),
    "images": spaces.Box(0, 255, (64, 64, 3), np.uint8),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("n_workers", [1, 2, 5])
@pytest.mark.parametrize("name", SPACES)
def test_all_results_are_those_of_dummy_vec_env(name: str, n_workers: int) -> None:
    env_fns: list[Any] = [lambda: Reports(NoiseEnv(BOX, deepcopy(SPACES[name])))] * 5
    ours = SafeSubprocVecEnv(env_fns, start_method="fork", n_workers=n_workers)
    theirs = DummyVecEnv(env_fns)
    assert len(ours.processes) == n_workers
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    ours.seed(4), theirs.seed(4)
    observations = ours.reset(), theirs.reset()
    n_dones = 0
    for _ in range(40):
        np.testing.assert_equal(*observations)
        np.testing.assert_equal(list(ours.reset_infos), theirs.reset_infos)
        parts = [each.values() if isinstance(each, dict) else each for each in observations]
        kinds = [[part.dtype for part in each] if name in ("Dict", "Tuple") else each.dtype for each in parts]  # type: ignore[union-attr]
        assert kinds[0] == kinds[1]
        actions = np.array([theirs.action_space.sample() for _ in range(5)])
        ours_step, theirs_step = ours.step(actions), theirs.step(actions)
        np.testing.assert_equal(ours_step[1:], theirs_step[1:])
        assert [part.dtype for part in ours_step[1:3]] == [part.dtype for part in theirs_step[1:3]]
        observations = ours_step[0], theirs_step[0]
        n_dones += int(theirs_step[2].sum())
    assert n_dones > 5
    ours.close()


def test_environments_of_several_workers_are_asked_in_any_order() -> None:
    env = SafeSubprocVecEnv([partial(NoiseEnv, BOX)] * 5, start_method="fork", n_workers=2)
    for i in range(5):
        env.set_attr("mine", i, indices=i)
    indices: Any
    for indices in ([4, 0, 2], [1, 1], [-1], 3, range(5), None, []):
        expected = list(range(5))
        expected = expected if indices is None else [expected[i] for i in ([indices] if indices == 3 else indices)]
        assert env.get_attr("mine", indices) == expected
        assert env.env_method("get_wrapper_attr", "mine", indices=indices) == expected
    with pytest.raises(IndexError):
        env.get_attr("mine", 5)
    assert not env.has_attr("nothing")
    with pytest.raises(ArgumentError, match="actions: 4 actions for 5 environments"):
        env.step(np.zeros((4, 2)))
    env.close()


class Different(gym.Env):
    """Has observations of a shape of its own."""

    action_space = spaces.Discrete(2)

    def __init__(self, size: int):
        self.observation_space = spaces.Box(-1, 1, (size,))
        self._size = size

    def reset(self, **_: Any) -> Any:
        return np.zeros(self._size, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(self._size, np.float32), 0.0, False, False, {}


def test_observations_of_different_shapes_are_not_broadcast() -> None:
    env = SafeSubprocVecEnv([partial(Different, 3), partial(Different, 1)], start_method="fork", n_workers=2)
    with pytest.raises(ValueError, match="must match exactly"):
        env.step(np.zeros(2, int))
    env.close()


class Words(NoiseEnv):
    """Observes text, which has no fixed size in bytes."""

    def __init__(self) -> None:
        super().__init__(BOX)
        self.observation_space = spaces.Text(3)

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return "a", {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return "abc"[self.steps % 3], float(action[0]), False, False, {}


def test_observations_without_a_fixed_type_go_through_pipes() -> None:
    env = SafeSubprocVecEnv([Words] * 3, start_method="fork", n_workers=2)
    env.reset()
    observations, rewards, *_ = env.step(np.array([[1, 0], [2, 0], [3, 0]], np.float32))
    assert observations.tolist() == ["b"] * 3 and rewards.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    env.close()


class Echo(NoiseEnv):
    """Keeps its actions, and returns the first number of each as the reward."""

    def __init__(self) -> None:
        super().__init__(BOX)
        self.kept: list[np.ndarray] = []

    def step(self, action: Any) -> Any:
        self.kept.append(action)
        observation, _, _, _, info = super().step(action)
        return observation, float(action[0]), False, False, info

    def has_kept(self) -> list[float]:
        return [float(action[0]) for action in self.kept]


@pytest.mark.parametrize(
    "start_method", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("forkserver", "spawn"))]
)
def test_arrays_do_not_change_in_later_steps(start_method: str) -> None:
    """Neither do those of the user, nor the actions that an environment keeps."""
    env = SafeSubprocVecEnv([Echo] * 3, start_method=start_method, n_workers=2)
    env.reset()
    results = []
    for i in range(4):
        # Those of the type of the space are written to shared memory, and the others sent.
        actions = np.full((3, 2), i / 8, np.float32 if i % 2 else np.float64)
        results.append(env.step(actions)[:3])
    copies = deepcopy(results)
    env.step(np.ones((3, 2), np.float32))
    np.testing.assert_equal(results, copies)
    assert [rewards.tolist() for _, rewards, _ in results] == [[i / 8] * 3 for i in range(4)]
    assert env.env_method("has_kept") == [[0, 1 / 8, 2 / 8, 3 / 8, 1]] * 3
    env.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_shared_memory_has_no_name_that_could_be_left() -> None:
    before = set(os.listdir("/dev/shm"))
    env = SafeSubprocVecEnv([partial(NoiseEnv, BOX)] * 2, start_method="fork", n_workers=2)
    for process in (psutil.Process(), *processes_of(env)):
        paths = [
            each.path for each in process.memory_maps(grouped=False) if "sb3_ppo_variants.envs.shared" in each.path
        ]
        assert paths and all(path.startswith("/memfd:") for path in paths)
    assert set(os.listdir("/dev/shm")) <= before
    env.close()


class Scheduled(NoiseEnv):
    """Tells how its process is scheduled."""

    def scheduler(self) -> int:
        return os.sched_getscheduler(0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_worker_that_wakes_up_does_not_interrupt_the_process_that_wakes_it() -> None:
    before = os.sched_getscheduler(0)
    env = SafeSubprocVecEnv([partial(Scheduled, BOX)] * 2, n_workers=2)
    assert env.env_method("scheduler") == [os.SCHED_BATCH] * 2
    assert os.sched_getscheduler(0) == before
    env.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_worker_keeps_the_scheduling_that_its_user_has_chosen() -> None:
    assert ended(prints_the_scheduler_of_a_worker, os.SCHED_IDLE).stdout == f"[{os.SCHED_IDLE}]\n"


def prints_the_scheduler_of_a_worker(chosen: int) -> None:
    os.sched_setscheduler(0, chosen, os.sched_param(0))
    env = SafeSubprocVecEnv([partial(Scheduled, BOX)], start_method="fork")
    print(env.env_method("scheduler"))
    env.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_workers_start_where_no_process_may_change_its_scheduling(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbid)
    env = SafeSubprocVecEnv([partial(Scheduled, BOX)], start_method="fork")
    assert env.env_method("scheduler") == [os.SCHED_OTHER]
    env.close()


@pytest.mark.parametrize("n_workers", [0, 1.5, "all"])
def test_a_wrong_number_of_workers(n_workers: Any) -> None:
    with pytest.raises(ArgumentError, match=r"n_workers=.* is not allowed"):
        SafeSubprocVecEnv([partial(NoiseEnv, BOX)], n_workers=n_workers)


class Earns(gym.Env):
    """Earns a Python integer for each step, until a time limit ends the episode after 4."""

    observation_space = VECTOR
    action_space = BOX
    taken = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        self.taken = 0
        return np.zeros(VECTOR.shape, VECTOR.dtype), {}

    def step(self, action: Any) -> tuple[Any, int, bool, bool, dict]:
        self.taken += 1
        return np.ones(VECTOR.shape, VECTOR.dtype), 1, False, self.taken == 4, {}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("cls", [DummyVecEnv, SubprocVecEnv, SafeSubprocVecEnv])
def test_integer_rewards_keep_the_value_at_a_time_limit(cls: Any, fast: bool) -> None:
    env = cls([Earns] * 2)
    model = small(PPOClip, env, n_steps=8, fast=fast)
    value = model.policy.predict_values(th.ones(1, *VECTOR.shape)).item()
    model.learn(16)
    expected = np.ones((8, 2), np.float32)
    expected[[3, 7]] += 0.99 * value  # gamma V(s) where the time limit cuts the return off
    np.testing.assert_allclose(model.rollout_buffer.rewards, expected, rtol=1e-6)
    assert abs(value) > 1e-6
    env.close()
