"""Pipes to worker processes on which each answer belongs to its command, and whose errors name the worker."""

import select
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler

from sb3_ppo_variants.errors import WorkerError
from sb3_ppo_variants.interrupts import HELD

# How long to wait for a process to end after its pipe has closed.
SECONDS_AFTER_CLOSING = 1.0


class Unanswered(Exception):
    """There was no answer in time. A handler of signals may raise a ``TimeoutError`` of its own."""


class WorkerEndedError(WorkerError):
    """A worker process has ended."""

    @classmethod
    def of(cls, env_index: int, process: BaseProcess) -> "WorkerEndedError":
        """Make the error of a process that has ended or closed its pipe, which says how."""
        process.join(SECONDS_AFTER_CLOSING)
        code = process.exitcode
        if code is None:
            return cls(env_index, "closed its pipe")
        return cls(env_index, f"was killed by signal {-code}" if code < 0 else f"exited with code {code}")


class Exchange:
    """The parent's end of a pipe to a worker that answers each command once, in turn.

    An interrupt, an error or a time limit may prevent an answer from being received. It is then dropped before the next
    command is sent. During training, a Ctrl-C waits until the current message is complete. If a message is cut off
    nevertheless, for example by a second Ctrl-C, a part of it remains in the pipe, and nothing more is sent.

    :param pipe: the parent's end of the pipe, without outstanding answers
    :param process: the worker process, which is terminated if it can no longer be told to close
    """

    def __init__(self, pipe: Connection, env_index: int, process: BaseProcess):
        self.pipe = pipe
        self.last: object = None
        """The last answer that was received."""
        self.process = process
        self._env_index = env_index
        self._unanswered = False
        self.useless = False
        """Whether the pipe contains an incomplete message."""
        self._wait = waits_for(pipe, process)

    @property
    def env_index(self) -> int:
        """Index of the worker's environment, for errors."""
        return self._env_index

    @property
    def clean(self) -> bool:
        """Whether no answer is outstanding."""
        return not self._unanswered and not self.useless

    @property
    def closed(self) -> bool:
        """Whether the pipe is closed."""
        return self.pipe.closed

    def send(self, command: tuple[str, object]) -> None:
        """Send a command.

        :raises WorkerError: if the worker has ended, or the pipe contains an incomplete message
        """
        if command[0] == "close" and self.useless:
            self.process.terminate()
            return
        self.send_pickled(ForkingPickler.dumps(command))

    def send_pickled(self, message: bytes | memoryview) -> None:
        """Send a command that has already been pickled, as :meth:`send` does."""
        self._check()
        if self._unanswered:
            self.recv()  # A worker that is blocked while sending does not read commands.
        try:
            with HELD:
                # The order matters: an exception that is not due to a Ctrl-C may be raised between any two lines.
                self.useless = True
                self._unanswered = True
                try:
                    self.pipe.send_bytes(message)
                except ConnectionError:
                    self.useless = False
                    raise
                self.useless = False
        except ConnectionError as error:
            raise WorkerEndedError.of(self.env_index, self.process) from error

    def recv(self) -> object:
        """Wait for the answer to the last command, and return it; ``None`` if no answer is outstanding."""
        return None if self.clean else self.receive(None)

    def receive(self, seconds: float | None) -> object:
        """Wait for the answer to the last command, with a time limit.

        :param seconds: how long to wait; ``None`` for no limit
        :raises Unanswered: if there is no answer in that time
        :raises WorkerError: if the worker has ended, or the pipe contains an incomplete message
        """
        self._check()
        try:
            if not self._wait(seconds):
                raise Unanswered
            with HELD:
                self.useless = True
                try:
                    message = self.pipe.recv_bytes()
                except (EOFError, ConnectionError):
                    self.useless = False
                    raise
                self._unanswered = False
                self.useless = False
        except (EOFError, ConnectionError) as error:
            raise WorkerEndedError.of(self.env_index, self.process) from error
        self.last = ForkingPickler.loads(message)
        return self.last

    def _check(self) -> None:
        if self.useless:
            problem = "was cut off in the middle of a message: close its vectorised environment and make a new one"
            raise WorkerError(self.env_index, problem)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is something to receive."""
        return self.pipe.poll(timeout)

    def fileno(self) -> int:
        """Return the file descriptor of the pipe."""
        return self.pipe.fileno()

    def close(self) -> None:
        """Close the pipe."""
        self.pipe.close()


def waits_for(pipe: Connection, process: BaseProcess) -> Callable[[float | None], bool]:
    """Make a function that waits for something to receive, with an optional limit in seconds.

    The function returns whether there is something to receive. It raises an ``EOFError`` if the process ends without
    having sent anything: other workers may keep the pipe open.
    """
    if not hasattr(select, "poll"):
        return pipe.poll
    # Register once, because multiprocessing creates a new poll object for each call.
    poll, number = select.poll(), pipe.fileno()
    poll.register(number, select.POLLIN)
    poll.register(process.sentinel, select.POLLIN)

    def is_ready(seconds: float | None) -> bool:
        ready = poll.poll(None if seconds is None else 1000 * seconds)
        if len(ready) == 1 and ready[0][0] != number:
            raise EOFError
        return bool(ready)

    return is_ready


def ended_worker(processes: Sequence[BaseProcess], advice: str) -> WorkerError:
    """Make the error that names the worker that has ended, and gives an advice."""
    wait([process.sentinel for process in processes], SECONDS_AFTER_CLOSING)
    index = next((i for i, process in enumerate(processes) if not process.is_alive()), 0)
    return WorkerError(index, f"{WorkerEndedError.of(index, processes[index]).problem}; {advice}")
