"""A version of SB3's ``SubprocVecEnv`` that does not wait forever for workers that have failed."""

import multiprocessing as mp
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper
from stable_baselines3.common.vec_env.patch_gym import _patch_env
from stable_baselines3.common.vec_env.subproc_vec_env import _worker

from sb3_ppo_variants.arguments.rules import POSITIVE
from sb3_ppo_variants.errors import ArgumentError, EnvOutputError, WorkerError, refuse
from sb3_ppo_variants.guards.masks import check_stays
from sb3_ppo_variants.guards.outputs import check_outputs
from sb3_ppo_variants.guards.workers import Exchange, Unanswered, WorkerEndedError

if sys.platform == "linux":
    import fcntl

# Environments may need time to write files before they close. Workers that are still running after SECONDS_TO_CLOSE are
# terminated, and those still running SECONDS_TO_END later are killed.
SECONDS_TO_CLOSE = 3.0
SECONDS_TO_END = 0.5

# The largest timeout: the system takes milliseconds as a signed 32-bit integer.
MOST_SECONDS = 2e6


class Failure(NamedTuple):
    """A worker's message in place of a result when it fails."""

    traceback: str
    wrong_output: EnvOutputError | None


class SafeSubprocVecEnv(SubprocVecEnv):
    """A ``SubprocVecEnv`` that reports which worker failed, and why.

    If a worker raises an error, exits or does not answer in time, you get a :class:`~sb3_ppo_variants.WorkerError` with
    its index and any traceback. Each worker checks the outputs of its environment before they are stacked.
    ``close()`` returns within five seconds, whatever the workers do. No worker outlives the process that started it,
    except on systems other than Linux, if it hangs in C code that holds the interpreter's lock.

    If an interrupt, an error or the timeout leaves an answer pending, the next command discards it. A worker becomes
    unusable only if a message was cut off in the middle. Workers ignore Ctrl-C.

    :param env_fns: functions that create the environments, at least one
    :param start_method: how to start the processes, one of ``multiprocessing.get_all_start_methods()``; as in SB3,
        ``None`` selects ``"forkserver"`` if it is available, and otherwise ``"spawn"``
    :param timeout: seconds that a worker may take to answer, > 0 and at most two million; ``None`` waits forever
    :raises ArgumentError: if an argument has a value that is not allowed
    :raises WorkerError: if an environment cannot be created
    """

    def __init__(
        self, env_fns: list[Callable[[], gym.Env]], start_method: str | None = None, timeout: float | None = None
    ):
        POSITIVE.or_none().check("timeout", timeout)
        if timeout is not None and timeout > MOST_SECONDS:
            raise ArgumentError(f"timeout={timeout!r} must be at most {MOST_SECONDS:g} seconds; None waits forever")
        if not env_fns:
            refuse("env_fns", env_fns, "a list of at least one function")
        methods = mp.get_all_start_methods()
        if start_method is not None and start_method not in methods:
            refuse("start_method", start_method, f"{', '.join(map(repr, methods))}, or None")
        self.waiting = False
        self.closed = False
        context = mp.get_context(start_method or ("forkserver" if "forkserver" in methods else "spawn"))
        # Workers take the place of pipes, because SB3's methods call send() and recv() on self.remotes.
        self.remotes: list[Worker] = []
        self.processes = []
        try:
            for i, env_fn in enumerate(env_fns):
                self.remotes.append(Worker(context, i, env_fn, None if timeout is None else float(timeout)))
                self.processes.append(self.remotes[i].process)
            self.remotes[0].send(("get_spaces", None))
            VecEnv.__init__(self, len(env_fns), *self.remotes[0].recv())
        except BaseException:
            self.close()
            raise

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
            worker.close()


class Worker(Exchange):
    """A process that runs an environment, and the parent's end of the pipe to it."""

    def __init__(self, context: Any, env_index: int, env_fn: Callable[[], gym.Env], timeout: float | None):
        self._timeout = timeout
        self._hangs = False
        pipe, child = context.Pipe()
        if timeout is not None:
            limit_messages(pipe, timeout)
        make_env = CloudpickleWrapper(partial(_checked_env, env_fn, env_index))
        process = context.Process(target=_work, args=(child, pipe, make_env), daemon=True)
        process.start()
        # Close it now, or the next process would inherit it and keep it open.
        child.close()
        super().__init__(pipe, env_index, process)

    def send(self, command: tuple[str, object]) -> None:
        """Send a command.

        :raises WorkerError: if the worker has exited or was closed, does not take it in time, or its pipe has become
            unusable
        """
        try:
            super().send(command)
        except BlockingIOError:
            self._fail_to_answer()
        except WorkerEndedError:
            self.recv()  # It raises the error that the worker sent, if there is one.
            raise
        except OSError:
            if not self.closed:
                raise
            self._fail("has ended, because close() was called: make a new vectorised environment")

    def recv(self) -> Any:
        """Receive the answer to the last command.

        :raises WorkerError: if the worker raised an error, exited, does not answer in time, or was sent no command
        :raises EnvOutputError: if the environment returned something with the wrong type, shape or range
        """
        if self.clean:
            self._fail("has no command to answer: call step_async() before step_wait(), and nothing in between")
        while True:
            try:
                answer = self.receive(self._timeout)
            except (Unanswered, BlockingIOError):
                self._fail_to_answer()
            self._hangs = False
            if isinstance(answer, Failure):
                failure = WorkerError(self.env_index, f"raised an error:\n{answer.traceback}")
                if answer.wrong_output is None:
                    raise failure
                raise answer.wrong_output from failure
            if self.clean:
                return answer

    def _fail_to_answer(self) -> NoReturn:
        self._hangs = True
        self._fail(f"did not answer within {self._timeout:g} seconds")

    def _fail(self, problem: str) -> NoReturn:
        raise WorkerError(self.env_index, problem)

    def ask_to_end(self) -> None:
        """Ask the worker to exit, unless its pipe is unusable."""
        if not self.useless:
            with suppress(OSError):
                self.pipe.send(("close", None))

    def join(self, deadline: float) -> None:
        """Wait for the worker to exit, unless it hangs or could not be asked to.

        :param deadline: when to stop waiting, on the clock of ``time.monotonic``
        """
        if self._hangs or self.useless:
            return
        # The worker would block if an answer that nobody reads filled the pipe.
        with suppress(EOFError, OSError):
            while wait([self.pipe, self.process.sentinel], max(0.0, deadline - time.monotonic())):
                if not self.pipe.poll():
                    break
                limit_messages(self.pipe, max(0.0, deadline - time.monotonic()))
                self.pipe.recv_bytes()
        self.process.join(max(0.0, deadline - time.monotonic()))


def limit_messages(pipe: Connection, seconds: float) -> None:
    """Make a message fail with a ``BlockingIOError`` if it stalls partway for this long.

    This does nothing on Windows, where pipes have no such limit.
    """
    if sys.platform != "win32":
        with socket.socket(fileno=os.dup(pipe.fileno())) as end:
            end.setblocking(True)  # Regardless of socket.setdefaulttimeout().
            limit = struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, limit)


def _checked_env(env_fn: Callable[[], gym.Env], env_index: int) -> gym.Env:
    return check_stays(check_outputs(_patch_env(env_fn()), env_index), env_index)


def _work(child: Connection, parent: Connection, make_env: CloudpickleWrapper) -> None:
    """Run SB3's worker and report its errors."""
    _end_with_parent()
    # Ctrl-C interrupts all processes of a terminal, but the parent decides whether training continues.
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        _worker(child, parent, make_env)
    except BaseException as error:
        with suppress(OSError):  # The parent may have closed the pipe.
            child.send(Failure(traceback.format_exc(), error if isinstance(error, EnvOutputError) else None))
        sys.exit(1)


def _end_with_parent() -> None:
    """Exit when the parent process ends, even if the environment hangs."""
    parent = mp.parent_process()
    assert parent is not None
    threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()
    if sys.platform == "linux":
        # The thread cannot run while C code holds the interpreter's lock. The sentinel is a pipe that the parent's end
        # closes, at which Linux then sends SIGKILL.
        with suppress(OSError):
            fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
