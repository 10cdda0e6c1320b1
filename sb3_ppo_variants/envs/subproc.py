"""A version of SB3's ``SubprocVecEnv`` with several environments per worker that does not wait forever for workers.

This process sends a ``Worker`` calls of the methods of its ``WorkerEnvs``. Each call has one answer.
"""

import mmap
import multiprocessing as mp
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from ctypes import c_int
from functools import partial
from itertools import chain, pairwise, repeat
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from tempfile import TemporaryFile
from typing import Any, NoReturn, TypeAlias

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper, VecEnvIndices, VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs, obs_space_info

from sb3_ppo_variants.arguments import COUNT, POSITIVE, one_of
from sb3_ppo_variants.envs.outputs import DummySteps, Info, check_observables
from sb3_ppo_variants.errors import ArgumentError, GuardError, WorkerError, refuse
from sb3_ppo_variants.interrupts import HELD
from sb3_ppo_variants.layout import Actions, AnySpace

# Environments may need time to write files before they close. Workers that are still running after SECONDS_TO_CLOSE are
# terminated, and those still running SECONDS_TO_END later are killed.
SECONDS_TO_CLOSE = 3.0
SECONDS_TO_END = 0.5
# The messages of most steps, without infos and resets. Pickling takes longer than sending.
STEP, STEPPED = pickle.dumps(("advance", (), {})), pickle.dumps((None, None))
# The info of a step in an environment that tells nothing.
NO_INFO: Info = {"TimeLimit.truncated": False}
# A file descriptor, in what multiprocessing hands on to processes. On Windows, it is a name.
Memory: TypeAlias = Connection
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

    The workers work at the same time, and each steps its environments one after the other. The results are those of a
    ``DummyVecEnv``. Arrays are in memory that the processes share; infos and actions of other kinds are sent.

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
        one_of(*methods).or_none().check("start_method", start_method)
        self.closed = False
        context = mp.get_context(start_method or ("forkserver" if "forkserver" in methods else "spawn"))
        self.remotes: list[Worker] = []
        n_envs, n_started = len(env_fns), min(len(env_fns), n_workers or count_cores())
        # Whole numbers whose differences are as equal as possible.
        bounds = [n_envs * i // n_started for i in range(n_started + 1)]
        memory = open_memory()
        try:
            for first, end in pairwise(bounds):
                self.remotes.append(Worker(context, env_fns[first:end], first, timeout, memory))
            spaces, *_ = self._ask_all("describe")
            VecEnv.__init__(self, n_envs, *spaces)
            self._ask_all("share", spaces, n_envs)
            self._shared = Shared(memory, spaces, n_envs)
        except BaseException:
            self.close()
            raise

    def step_async(self, actions: np.ndarray) -> None:
        """Send each worker the actions of its environments.

        :raises ArgumentError: if there are more or fewer actions than environments
        """
        if len(actions) != self.num_envs:
            raise ArgumentError(f"actions: {len(actions)} actions for {self.num_envs} environments; pass one for each")
        self.taken_actions = actions
        shared = self._shared.actions
        is_usual = isinstance(actions, np.ndarray) and actions.dtype == shared.dtype and actions.shape == shared.shape
        # A worker whose last answer was dropped may still be reading the actions of that step.
        if is_usual and not any(worker.owes for worker in self.remotes):
            shared[...] = actions
            for worker in self.remotes:
                worker.send_bytes(STEP)
        else:
            for worker in self.remotes:
                worker.send("advance", actions[worker.rows])

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for all workers, and copy their results."""
        answers = [worker.recv() for worker in self.remotes]
        infos = [NO_INFO.copy() for _ in range(self.num_envs)]
        for others, begun in filter(None, answers):
            for i, info in others.items():
                infos[i] = info
            for i, info in begun.items():
                self.reset_infos[i] = info
        return self._observations(), self._shared.rewards.copy(), self._shared.dones.copy(), infos

    def reset(self) -> VecEnvObs:
        """Reset all environments, with the seeds and options that were set since the last reset."""
        for worker in self.remotes:
            worker.send("begin", self._seeds[worker.rows], self._options[worker.rows])
        self.reset_infos = [*chain.from_iterable([worker.recv() for worker in self.remotes])]
        self._reset_seeds()
        self._reset_options()
        return self._observations()

    def _observations(self) -> VecEnvObs:
        parts = {key: part.copy() for key, part in self._shared.parts.items()}
        return dict_to_obs(self.observation_space, parts)

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Get a picture of each environment, or ``None`` without ``render_mode="rgb_array"``."""
        return self.env_method("render")

    def has_attr(self, attr_name: str) -> bool:
        """Check whether all environments have an attribute."""
        return all(self._ask_all("has_attr", attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Get an attribute of some of the environments."""
        return self._ask("get_attr", indices, attr_name)

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Set an attribute of some of the environments: in each, that of the innermost wrapper or environment.

        :raises AttributeError: if an environment has no such attribute
        """
        if not all(self._ask("set_attr", indices, attr_name, value)):
            raise AttributeError(f"not all environments have {attr_name!r}: give it a first value in their constructor")

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        """Call a method of some of the environments."""
        return self._ask("env_method", indices, method_name, *method_args, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Check which of the environments are wrapped with the class."""
        return self._ask("env_is_wrapped", indices, wrapper_class)

    def _ask_all(self, method: str, *args: object) -> list[Any]:
        """Call a method of all workers."""
        for worker in self.remotes:
            worker.send(method, *args)
        return [worker.recv() for worker in self.remotes]

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
        """Let the workers exit, and terminate or kill those that do not."""
        if self.closed:
            return
        self.closed = True
        for worker in self.remotes:
            worker.hang_up()
        for process in self._running(SECONDS_TO_CLOSE):
            process.terminate()
        for process in self._running(SECONDS_TO_END):
            process.kill()
        self._running(SECONDS_TO_END)

    def _running(self, seconds: float) -> list[BaseProcess]:
        """Wait until all workers have exited, for at most so many seconds, and return those that have not."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process for process in self.processes if process.is_alive()]

    @property
    def processes(self) -> list[BaseProcess]:  # type: ignore[override]
        """The processes of the workers."""
        return [worker.process for worker in self.remotes]


class Worker:
    """A process that runs some of the environments, and the parent's end of the pipe to it.

    Each command has one answer. An answer that was not received, because of an interrupt, an error or the timeout, is
    dropped before the next command is sent. During training, a Ctrl-C waits until a message is complete; if one is cut
    off in the middle, the worker can no longer be used, because nothing after it could be read.

    :param first: index of the first of its environments
    """

    def __init__(
        self, context: Any, env_fns: list[Callable[[], gym.Env]], first: int, timeout: float | None, memory: Memory
    ):
        self.rows = slice(first, first + len(env_fns))
        """Which environments are its own."""
        self.owes = False
        """Whether an answer is outstanding."""
        self._timeout = timeout
        # The system takes a signed 32-bit integer.
        self._milliseconds = None if timeout is None else int(min(1000 * timeout, 2e9))
        self._current: c_int = context.RawValue(c_int, first)
        self.pipe, child = context.Pipe()
        arguments = (child, self.pipe, CloudpickleWrapper(env_fns), first, self._current, memory)
        self.process = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        # Close it now, or the next process would inherit it and keep it open.
        child.close()
        if hasattr(select, "poll"):
            # Register once, because multiprocessing creates a new poll object for each call.
            self._poll, self._sentinel = select.poll(), self.process.sentinel
            for watched in (self.pipe, self._sentinel):
                self._poll.register(watched, select.POLLIN)

    def send(self, method: str, *args: object, **kwargs: object) -> None:
        """Call a method of :class:`WorkerEnvs`; see :meth:`send_bytes`."""
        self.send_bytes(pickle.dumps((method, args, kwargs)))

    def send_bytes(self, message: bytes) -> None:
        """Send a call that has already been pickled.

        :raises WorkerError: if the worker has ended or was closed, or its pipe has become unusable
        """
        if self.owes:
            self.recv()  # A worker that is blocked while sending does not read commands.
        if self.pipe.closed:
            why = "close() was called, or a message was cut off in the middle"
            self._fail(f"has ended, because {why}: make a new vectorised environment")
        self.owes = True
        with suppress(ConnectionError):  # recv() then raises the error that the worker sent, or says how it ended.
            self._whole(self.pipe.send_bytes, message)

    def recv(self) -> Any:
        """Receive the answer to the last command.

        :raises WorkerError: if the worker raised an error, exited, does not answer in time, or was sent no command
        :raises GuardError: if the environment returned something with the wrong type, shape or range
        """
        if not self.owes:
            self._fail("has no command to answer: call step_async() before step_wait(), and nothing in between")
        try:
            if not self._has_answered():
                hint = "the first answer takes the time to import modules and create environments too"
                self._fail(f"did not answer within {self._timeout:g} seconds; {hint}")
            failure, answer = pickle.loads(self._whole(self.pipe.recv_bytes))
        except (EOFError, ConnectionError):
            self.process.join(SECONDS_TO_CLOSE)
            code = self.process.exitcode
            ended = "closed its pipe" if code is None else f"exited with code {code}"
            self._fail(f"was killed by signal {-code}" if code is not None and code < 0 else ended)
        if failure is not None:
            raise failure
        return answer

    def _has_answered(self) -> bool:
        """Wait for an answer, and return whether there is one.

        :raises EOFError: if the process ends without having sent anything: other processes may keep the pipe open
        """
        if not hasattr(select, "poll"):
            return bool(self.pipe.poll(self._timeout))
        ready = self._poll.poll(self._milliseconds)
        if len(ready) == 1 and ready[0][0] == self._sentinel:
            raise EOFError
        return bool(ready)

    def _whole(self, exchange: Callable[..., Any], *message: bytes) -> Any:
        """Send or receive a message, and close the pipe if that is interrupted."""
        with HELD:
            try:
                received = exchange(*message)
                self.owes = received is None
                return received
            except (EOFError, ConnectionError):
                raise
            except BaseException:
                self.owes = False
                self.pipe.close()
                raise

    def _fail(self, problem: str) -> NoReturn:
        raise WorkerError(self._current.value, problem)

    def hang_up(self) -> None:
        """Let the worker close its environments and exit, when it next sends or waits for a message."""
        if sys.platform != "win32" and not self.pipe.closed:
            # Other processes may have inherited the pipe, and would keep it open.
            with socket.socket(fileno=os.dup(self.pipe.fileno())) as own, suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)
        self.owes = False
        self.pipe.close()


def open_memory() -> Memory:
    """Open memory of no size yet, which is freed with the last process that uses it, however that ends."""
    if sys.platform == "win32":
        return os.urandom(16).hex()
    if hasattr(os, "memfd_create"):  # Unlike /dev/shm, this is not small in containers.
        return Connection(os.memfd_create(__name__))
    with TemporaryFile() as file:
        return Connection(os.dup(file.fileno()))


class Shared:
    """What environments share: rewards, whether episodes have ended, the parts of observations, and actions.

    Actions that have no fixed shape and type are not shared.
    """

    def __init__(self, memory: Memory, spaces: tuple[AnySpace, AnySpace], n_envs: int, own: slice = slice(None)):
        of_observations, of_actions = spaces
        keys, shapes, dtypes = obs_space_info(of_observations)
        fields = [("reward", np.float32, ()), ("done", bool, ()), *((f"part {k}", dtypes[k], shapes[k]) for k in keys)]
        if of_actions.shape is not None and of_actions.dtype is not None:
            fields.append(("action", of_actions.dtype, of_actions.shape))
        dtype = np.dtype(fields, align=True)
        size = n_envs * dtype.itemsize
        if sys.platform == "win32":
            buffer = mmap.mmap(-1, size, tagname=memory)
        else:
            os.ftruncate(memory.fileno(), size)
            buffer = mmap.mmap(memory.fileno(), size)
        rows: np.ndarray = np.ndarray(n_envs, dtype, buffer)[own]
        self.rewards, self.dones = rows["reward"], rows["done"]
        self.parts = {key: rows[f"part {key}"] for key in keys}
        self.actions = rows["action"] if len(fields) > len(keys) + 2 else np.empty(0)


class WorkerEnvs(DummyVecEnv):
    """The environments of a worker, one after the other, with checks of what they return.

    A worker answers calls of the methods below, and of those of ``DummyVecEnv`` that ask single environments.

    :param first: index of the first one
    :param current: index of the environment at work, in memory that the parent process reads when the worker fails
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], first: int, current: c_int, memory: Memory):
        self.first, self._current, self._memory = first, current, memory
        super().__init__([partial(self._make, i, env_fn) for i, env_fn in enumerate(env_fns)])

    def _make(self, i: int, env_fn: Callable[[], gym.Env]) -> gym.Env:
        self._current.value = self.first + i
        env = env_fn()
        check_observables(getattr(env, "observation_space", None))
        return env

    def _get_target_envs(self, indices: VecEnvIndices) -> Iterator[gym.Env]:  # type: ignore[override]
        for i in self._get_indices(indices):
            self._current.value = self.first + i
            yield self.envs[i]

    def has_attr(self, attr_name: str) -> bool:
        """Check whether all environments have an attribute."""
        return all(find_owner(env, attr_name) is not None for env in self._get_target_envs(None))

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> list[bool]:  # type: ignore[override]
        """Set an attribute, and return for each environment whether it has one of this name."""
        owners = [find_owner(env, attr_name) for env in self._get_target_envs(indices)]
        for owner in (each for each in owners if each is not None):
            setattr(owner, attr_name, value)
        return [owner is not None for owner in owners]

    def describe(self) -> tuple[AnySpace, AnySpace]:
        """Return the spaces of observations and actions."""
        return self.observation_space, self.action_space

    def share(self, spaces: tuple[AnySpace, AnySpace], n_envs: int) -> None:
        """Write the results of resets and steps to shared memory, and read actions from it."""
        shared = Shared(self._memory, spaces, n_envs, slice(self.first, self.first + self.num_envs))
        self.buf_rews, self.buf_dones, self._shared_actions = shared.rewards, shared.dones, shared.actions
        self.buf_obs.update(shared.parts)
        self._steps = DummySteps(self, lambda: enumerate(self._get_target_envs(None)))

    def advance(self, actions: Actions = None) -> tuple[dict[int, Info], dict[int, Info]] | None:
        """Step each environment, and reset it if its episode ended.

        :param actions: the actions, if they are not in shared memory
        :return: the infos that are not :data:`NO_INFO` and those of resets, by index; ``None`` if there are none
        """
        self.actions = self._shared_actions.copy() if actions is None else actions  # The environments may keep them.
        self._steps.advance()
        infos = {i: info for i, info in enumerate(self.buf_infos, self.first) if info != NO_INFO}
        begun = {self.first + i: self.reset_infos[i] for i in np.flatnonzero(self.buf_dones).tolist()}
        return (infos, begun) if infos or begun else None

    def pack(self, answer: object) -> bytes:
        """Pickle an answer. An error counts as that of the environment whose info cannot be pickled."""
        try:
            return pickle.dumps((None, answer))
        except Exception:
            for i, info in chain(enumerate(self.buf_infos, self.first), enumerate(self.reset_infos, self.first)):
                self._current.value = i
                pickle.dumps(info)
            raise

    def begin(self, seeds: Sequence[int | None], options: Sequence[Info]) -> list[Info]:
        """Reset each environment, and return the infos."""
        self._seeds, self._options = [*seeds], [*options]
        self._steps.reset()
        return self.reset_infos


def find_owner(env: gym.Env, name: str) -> gym.Env | None:
    """Find the innermost environment or wrapper with an attribute. What raises any error when it is read is absent."""
    inner = find_owner(env.env, name) if isinstance(env, gym.Wrapper) else None
    with suppress(Exception):
        return env if inner is None and hasattr(env, name) else inner
    return None


def work(
    child: Connection, parent: Connection, env_fns: CloudpickleWrapper, first: int, current: c_int, memory: Memory
) -> None:
    """Answer calls until the parent hangs up, and report errors."""
    parent.close()
    _end_with_parent()
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        # Do not interrupt the parent when it wakes this process up, because it still has to wake others.
        with suppress(OSError):  # A sandbox may forbid it.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    # Ctrl-C interrupts all processes of a terminal, but the parent decides whether training continues.
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        envs = WorkerEnvs(env_fns.var, first, current, memory)
        _answer_all(child, envs)
        envs.close()
    except BaseException:
        with suppress(OSError):  # The parent may have hung up.
            child.send((WorkerError(current.value, f"raised an error:\n{traceback.format_exc()}"), None))
        sys.exit(1)


def _answer_all(child: Connection, envs: WorkerEnvs) -> None:
    while True:
        try:
            method, args, kwargs = child.recv()
        except (EOFError, OSError):
            return
        try:
            answer = getattr(envs, method)(*args, **kwargs)
            message = STEPPED if answer is None else envs.pack(answer)
        except GuardError as error:
            error.env_index = envs.first + (error.env_index or 0)
            message = pickle.dumps((error, None))
        with suppress(OSError):
            child.send_bytes(message)


def _end_with_parent() -> None:
    """Exit when the parent process ends, even if the environment hangs."""
    parent = mp.parent_process()
    assert parent is not None
    if sys.platform == "linux":
        import fcntl

        # A thread could not run while C code holds the interpreter's lock. The sentinel is a pipe that the parent's end
        # closes, at which Linux then sends SIGKILL.
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
