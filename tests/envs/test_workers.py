"""If a worker fails, the error names it, its environment closes in time, and no process is left."""

import ctypes
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from fresh import ended, run_code
from helpers import BOX, NoiseEnv, small
from sb3_ppo_variants import ArgumentError, PPOClip, WorkerError
from sb3_ppo_variants.envs import SafeSubprocVecEnv

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


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "start_method", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("forkserver", "spawn"))]
)
@pytest.mark.parametrize("index", range(N_ENVS))
@pytest.mark.parametrize("place", ["step", "reset"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_worker_that_fails(name: str, place: str, index: int, start_method: str) -> None:
    timeout = 1 if start_method == "fork" else 20
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


def test_learning_after_closing() -> None:
    env = SafeSubprocVecEnv([partial(NoiseEnv, BOX)], start_method="fork")
    model = PPOClip("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1)
    env.close()
    with pytest.raises(WorkerError, match=r"^the worker of environment 0 has ended, because close\(\) was called"):
        model.learn(8)


NOISE = partial(NoiseEnv, BOX)
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"timeout": each}, "timeout=.* is not allowed; allowed: .*or None") for each in (0, "5")),
    ({"n_workers": 0}, r"n_workers=.* is not allowed"),
    ({"env_fns": []}, r"env_fns=\[\] is not allowed; allowed: a list of at least one function"),
    ({"env_fns": [NoiseEnv(BOX)]}, r"env_fns=.* is not allowed; allowed: .*each of which creates an env"),
    ({"start_method": "thread"}, r"start_method='thread' is not allowed; allowed: .*'spawn'.*, or None"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_a_wrong_argument(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SafeSubprocVecEnv(**{"env_fns": [NOISE], **arguments})


def test_a_worker_that_takes_too_long_to_start() -> None:
    with pytest.raises(WorkerError, match=r"environment 0 did not answer within 0\.5 seconds; the first answer"):
        SafeSubprocVecEnv([partial(time.sleep, 1000)], timeout=np.float32(0.5))  # type: ignore[list-item, arg-type]


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


class Tells(NoiseEnv):
    """Has something in an info that cannot be pickled."""

    def __init__(self, place: str):
        super().__init__(BOX)
        self._place = place

    def step(self, action: Any) -> Any:
        *others, info = super().step(action)
        return *others, {"lock": threading.Lock()} if self._place == "step" else info

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        return observation, {"lock": threading.Lock()} if self._place == "reset" else info


@pytest.mark.parametrize("place", ["step", "reset"])
def test_an_info_that_cannot_be_pickled(place: str) -> None:
    env = SafeSubprocVecEnv([NOISE, NOISE, partial(Tells, place), NOISE], start_method="fork", n_workers=2)
    with pytest.raises(WorkerError, match=r"worker of environment 2 raised .*(.|\n)*pickle.dumps\(info\)(.|\n)*lock"):
        small(env=env).learn(64)
    env.close()
