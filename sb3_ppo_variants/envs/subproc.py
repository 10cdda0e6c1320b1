"""A version of SB3's ``SubprocVecEnv`` with several environments per worker that does not wait forever for workers."""

import multiprocessing as mp
import os
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from ctypes import c_int
from itertools import chain, pairwise, repeat
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler, send_handle
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper, VecEnvIndices, VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs, obs_space_info

from sb3_ppo_variants.arguments import COUNT, POSITIVE
from sb3_ppo_variants.envs.in_worker import (
    NO_INFO,
    STEP_MESSAGE,
    Failure,
    RowType,
    Stepped,
    open_memory,
    rows_in,
    shared_type,
    work,
)
from sb3_ppo_variants.errors import ArgumentError, WorkerError, refuse
from sb3_ppo_variants.interrupts import HELD

# Environments may need time to write files before they close. Workers that are still running after SECONDS_TO_CLOSE are
# terminated, and those still running SECONDS_TO_END later are killed.
SECONDS_TO_CLOSE = 3.0
SECONDS_TO_END = 0.5
# How long to wait for a process to end after its pipe has closed.
SECONDS_AFTER_CLOSING = 1.0

# The system takes milliseconds as a signed 32-bit integer.
LONGEST_WAIT = 2e6
_CORES: ContextVar[int | None] = ContextVar("cores", default=None)


def count_cores() -> int:
    """Count the cores that this process may use: not all in a container, or within :func:`limit_cores`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _CORES.get() or cores)


@contextmanager
def limit_cores(cores: int) -> Iterator[None]:
    """Let environments that are created meanwhile use at most so many cores, >= 1, because others need the rest."""
    token = _CORES.set(cores)
    try:
        yield
    finally:
        _CORES.reset(token)


class SafeSubprocVecEnv(SubprocVecEnv):
    """A ``SubprocVecEnv`` with several environments per worker that reports which one failed, and why.

    A message to a worker steps all of its environments, one after the other. The workers work at the same time. The
    results are those of a ``DummyVecEnv``. Actions, observations, rewards and dones are in memory that the processes
    share, except on Windows and with actions that have no fixed shape; infos are sent.

    If a worker raises an error, exits or does not answer in time, you get a :class:`~sb3_ppo_variants.WorkerError` with
    the index of the environment at work and any traceback, and a ``GuardError`` if an environment returns something
    wrong. ``close()`` returns within five seconds. No worker outlives the process that started it, except on systems
    other than Linux, if it hangs in C code that holds the interpreter's lock.

    If an interrupt, an error or the timeout leaves an answer pending, the next command discards it. A worker becomes
    unusable only if a message was cut off in the middle. Workers ignore Ctrl-C.

    :param env_fns: functions that create the environments, at least one
    :param start_method: one of ``multiprocessing.get_all_start_methods()``; as in SB3, ``None`` selects
        ``"forkserver"`` if it is available, and otherwise ``"spawn"``
    :param timeout: seconds that a worker may take to answer, > 0; ``None`` waits forever. The first answer takes the
        time in which it starts, imports modules and creates its environments
    :param n_workers: number of processes, >= 1; ``None`` for one per core. At most one per environment is started, so
        choose the number of environments if they spend their time waiting, as for a network
    :raises ArgumentError: if an argument has a value that is not allowed
    :raises WorkerError: if an environment cannot be created
    """

    checks_outputs = True
    """Its workers check what the environments return, so ``learn`` need not."""

    def __init__(
        self,
        env_fns: list[Callable[[], gym.Env]],
        start_method: str | None = None,
        timeout: float | None = None,
        n_workers: int | None = None,
    ):
        POSITIVE.or_none().check("timeout", timeout)
        COUNT.or_none().check("n_workers", n_workers)
        if not (env_fns and all(map(callable, env_fns))):
            refuse("env_fns", env_fns, "a list of at least one function, each of which creates an environment")
        methods = mp.get_all_start_methods()
        if start_method is not None and start_method not in methods:
            refuse("start_method", start_method, f"{', '.join(map(repr, methods))}, or None")
        self.closed = False
        self._shared: list[np.ndarray] | None = None
        context = mp.get_context(start_method or ("forkserver" if "forkserver" in methods else "spawn"))
        self.remotes: list[Worker] = []
        n_envs, n_started = len(env_fns), min(len(env_fns), n_workers or count_cores())
        # Whole numbers whose differences are as equal as possible.
        bounds = [n_envs * i // n_started for i in range(n_started + 1)]
        try:
            for first, end in pairwise(bounds):
                self.remotes.append(Worker(context, env_fns[first:end], first, timeout))
            for worker in self.remotes:
                worker.send("describe")
            spaces, *_ = [worker.recv() for worker in self.remotes]
            VecEnv.__init__(self, n_envs, *spaces)
            self._keys, *_ = obs_space_info(self.observation_space)
            dtype = shared_type(*spaces)
            if dtype is not None and sys.platform != "win32":
                self._shared = self._share(dtype)
        except BaseException:
            self.close()
            raise

    def _share(self, dtype: RowType) -> list[np.ndarray]:
        memory = open_memory(self.num_envs * dtype.itemsize)
        try:
            for worker in self.remotes:
                worker.send("share", dtype, self.num_envs)
                send_handle(worker.pipe, memory, worker.process.pid)
                worker.recv()
            return rows_in(memory, dtype, self.num_envs)
        finally:
            os.close(memory)

    def step_async(self, actions: np.ndarray) -> None:
        """Send each worker the actions of its environments.

        :raises ArgumentError: if there are more or fewer actions than environments
        """
        if len(actions) != self.num_envs:
            raise ArgumentError(f"actions: {len(actions)} actions for {self.num_envs} environments; pass one for each")
        # A worker whose last answer was dropped may still be reading the actions of that step.
        own = None if self._shared is None or any(worker.owes for worker in self.remotes) else self._shared[0]
        given = (actions.shape, actions.dtype) if isinstance(actions, np.ndarray) else None
        if own is not None and given == (own.shape, own.dtype):
            own[...] = actions
            for worker in self.remotes:
                worker.send_bytes(STEP_MESSAGE)
        else:
            for worker in self.remotes:
                worker.send("advance", actions[worker.rows])

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for all workers, and join what they answered."""
        answers: list[Stepped | None] = [worker.recv() for worker in self.remotes]
        infos = [NO_INFO.copy() for _ in range(self.num_envs)]
        for answer in filter(None, answers):
            for i, info in answer.infos.items():
                infos[i] = info
            for i, info in answer.begun.items():
                self.reset_infos[i] = info
        if self._shared is not None:
            rewards, dones, *parts = [rows.copy() for rows in self._shared[1:]]
        else:
            rewards, dones, *parts = _join([answer.results for answer in answers if answer and answer.results])
        return self._observations(parts), rewards, dones, infos

    def reset(self) -> VecEnvObs:
        """Reset all environments, with the seeds and options that were set since the last reset."""
        for worker in self.remotes:
            worker.send("begin", self._seeds[worker.rows], self._options[worker.rows])
        observations, infos = zip(*[worker.recv() for worker in self.remotes], strict=True)
        self.reset_infos = [*chain.from_iterable(infos)]
        self._reset_seeds()
        self._reset_options()
        return self._observations(_join(observations))

    def _observations(self, parts: Sequence[np.ndarray]) -> VecEnvObs:
        return dict_to_obs(self.observation_space, dict(zip(self._keys, parts, strict=True)))

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Get a picture of each environment, or ``None`` and a warning without ``render_mode="rgb_array"``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"render_mode={self.render_mode!r} must be 'rgb_array' for images")
            return [None] * self.num_envs
        return self.env_method("render")

    def has_attr(self, attr_name: str) -> bool:
        """Check whether all environments have an attribute."""
        return all(self.env_method("has_wrapper_attr", attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Get an attribute of some of the environments."""
        return self._ask("get_attr", indices, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of some of the environments."""
        self._ask("set_attr", indices, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        """Call a method of some of the environments."""
        return self._ask("env_method", indices, method_name, *method_args, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Check which of the environments are wrapped with the class."""
        return self._ask("env_is_wrapped", indices, wrapper_class)

    def _ask(self, method: str, indices: VecEnvIndices, *args: object, **kwargs: object) -> list[Any]:
        """Call a method of the workers that have environments among the indices; return the answers in their order."""
        targets = [range(self.num_envs)[i] for i in self._get_indices(indices)]
        asked = {worker: sorted({*range(self.num_envs)[worker.rows]}.intersection(targets)) for worker in self.remotes}
        asked = {worker: own for worker, own in asked.items() if own}
        for worker, own in asked.items():
            worker.send(method, *args, indices=[i - worker.rows.start for i in own], **kwargs)
        answers: dict[int, Any] = {}
        for worker, own in asked.items():
            answers.update(zip(own, worker.recv() or repeat(None), strict=False))
        return [answers[i] for i in targets]

    def close(self) -> None:
        """Ask the workers to exit, then terminate or kill those that do not."""
        if self.closed:
            return
        self.closed = True
        deadline = time.monotonic() + SECONDS_TO_CLOSE
        for worker in self.remotes:
            worker.ask_to_end()
        for worker in self.remotes:
            worker.join(deadline)
        for end in ("terminate", "kill"):
            deadline = time.monotonic() + SECONDS_TO_END
            for process in [process for process in self.processes if process.is_alive()]:
                getattr(process, end)()
            for process in self.processes:
                process.join(max(0.0, deadline - time.monotonic()))
        for worker in self.remotes:
            worker.pipe.close()

    @property
    def processes(self) -> list[BaseProcess]:  # type: ignore[override]
        """The processes of the workers."""
        return [worker.process for worker in self.remotes]


class Worker:
    """A process that runs some of the environments, and the parent's end of the pipe to it.

    Each command has one answer. An answer that was not received, because of an interrupt, an error or the timeout, is
    dropped before the next command is sent. During training, a Ctrl-C waits until a message is complete; if one is cut
    off nevertheless, for example by a second Ctrl-C, nothing more is sent.
    """

    def __init__(self, context: Any, env_fns: Sequence[Callable[[], gym.Env]], first: int, timeout: float | None):
        self.rows = slice(first, first + len(env_fns))
        """Which environments are its own."""
        self.owes = False
        """Whether an answer is outstanding."""
        self._timeout = timeout
        self._is_cut = False
        self._current: c_int = context.RawValue(c_int, first)
        self.pipe, child = context.Pipe()
        functions = [*map(CloudpickleWrapper, env_fns)]
        arguments = (child, self.pipe, functions, first, self._current)
        self.process = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        # Close it now, or the next process would inherit it and keep it open.
        child.close()
        self._wait = waits_for(self.pipe, self.process)

    def send(self, method: str, *args: object, **kwargs: object) -> None:
        """Call a method of :class:`WorkerEnvs`; see :meth:`send_bytes`."""
        self.send_bytes(ForkingPickler.dumps((method, args, kwargs)))

    def send_bytes(self, message: bytes | memoryview) -> None:
        """Send a call that has already been pickled.

        :raises WorkerError: if the worker has ended or was closed, or its pipe has become unusable
        """
        if self.pipe.closed:
            self._fail("has ended, because close() was called: make a new vectorised environment")
        if self.owes:
            self.recv()  # A worker that is blocked while sending does not read commands.
        self._check_whole()
        with HELD:
            self.owes = self._is_cut = True
            with suppress(ConnectionError):  # recv() then raises the error that the worker sent, or says how it ended.
                self.pipe.send_bytes(message)
            self._is_cut = False

    def recv(self) -> Any:
        """Receive the answer to the last command.

        :raises WorkerError: if the worker raised an error, exited, does not answer in time, or was sent no command
        :raises GuardError: if the environment returned something with the wrong type, shape or range
        """
        if not self.owes:
            self._fail("has no command to answer: call step_async() before step_wait(), and nothing in between")
        self._check_whole()
        try:
            if not self._wait(self._timeout):
                hint = "the first answer takes the time to import modules and create environments too"
                self._fail(f"did not answer within {self._timeout:g} seconds; {hint}")
            with HELD:
                self._is_cut = True
                message = self.pipe.recv_bytes()
                self.owes = self._is_cut = False
        except (EOFError, ConnectionError) as error:
            self._is_cut = False
            raise WorkerError(self._current.value, how_it_ended(self.process)) from error
        answer = ForkingPickler.loads(message)
        if isinstance(answer, Failure):
            failure = WorkerError(self._current.value, f"raised an error:\n{answer.traceback}")
            if answer.wrong_output is None:
                raise failure
            raise answer.wrong_output from failure
        return answer

    def _check_whole(self) -> None:
        if self._is_cut:
            self._fail("was cut off in the middle of a message: close its vectorised environment and make a new one")

    def _fail(self, problem: str) -> NoReturn:
        raise WorkerError(self._current.value, problem)

    def ask_to_end(self) -> None:
        """Ask the worker to exit."""
        with suppress(OSError):
            if self._is_cut:
                self.pipe.close()
            else:
                self.pipe.send(("close", (), {}))

    def join(self, deadline: float) -> None:
        """Wait for the worker to exit.

        :param deadline: when to stop waiting, on the clock of ``time.monotonic``
        """
        with suppress(EOFError, OSError):
            # The worker would block if an answer that nobody reads filled the pipe.
            if self.owes and self._wait(max(0.0, deadline - time.monotonic())):
                self.pipe.recv_bytes()
        self.process.join(max(0.0, deadline - time.monotonic()))


def _join(of_workers: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    return [np.concatenate(arrays) for arrays in zip(*of_workers, strict=True)]


def waits_for(pipe: Connection, process: BaseProcess) -> Callable[[float | None], bool]:
    """Make a function that waits for an answer of a worker, with an optional limit in seconds.

    The function returns whether there is an answer. It raises an ``EOFError`` if the process ends without having sent
    anything: other workers may keep the pipe open.
    """
    if not hasattr(select, "poll"):
        return pipe.poll
    # Register once, because multiprocessing creates a new poll object for each call.
    poll, number = select.poll(), pipe.fileno()
    poll.register(number, select.POLLIN)
    poll.register(process.sentinel, select.POLLIN)

    def has_answered(seconds: float | None) -> bool:
        ready = poll.poll(None if seconds is None else int(1000 * min(seconds, LONGEST_WAIT)))
        if len(ready) == 1 and ready[0][0] != number:
            raise EOFError
        return bool(ready)

    return has_answered


def how_it_ended(process: BaseProcess) -> str:
    """Say how a process has ended that has closed its pipe."""
    process.join(SECONDS_AFTER_CLOSING)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
