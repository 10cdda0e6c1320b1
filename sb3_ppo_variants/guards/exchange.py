"""Pipes to workers on which an answer always belongs to the last command."""

import os
import select
import socket
import struct
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from sb3_ppo_variants.errors import WorkerError
from sb3_ppo_variants.guards.interrupts import HELD


class Unanswered(Exception):
    """There was no answer in time. A handler of signals may raise a ``TimeoutError`` of its own."""


class Exchange:
    """The parent's end of a pipe to a worker that answers each command once, in turn.

    An interrupt, an error or a time limit may prevent an answer from being received. It is then dropped when the next
    one is received. During training, a Ctrl-C waits until the current message is complete. If a message is cut off
    nevertheless, for example by a second Ctrl-C, a part of it remains in the pipe, and nothing more is sent.

    :param pipe: the parent's end of the pipe, without outstanding answers
    :param env_index: index of the worker's environment
    :param process: the worker process. Pass it if the pipe may stay open after the process has ended. It is also
        terminated if it can no longer be told to close
    """

    def __init__(self, pipe: Connection, env_index: int, process: BaseProcess | None = None):
        self.pipe = pipe
        self.last: Any = None
        """The last answer that was received."""
        self._env_index = env_index
        self._process = process
        self._unanswered = 0
        self._in_message = False
        self._wait = _waits_for(pipe, process)

    @property
    def clean(self) -> bool:
        """Whether no answer is outstanding."""
        return not self._unanswered and not self._in_message

    @property
    def useless(self) -> bool:
        """Whether the pipe contains an incomplete message."""
        return self._in_message

    def send(self, command: tuple[str, Any]) -> None:
        """Send a command.

        :raises WorkerError: if the pipe contains an incomplete message
        """
        if self._process is not None and command[0] == "close":
            if self._in_message:
                self._process.terminate()
                return
            self.recv()  # A worker that is blocked while sending does not read commands.
        self._check()
        message = ForkingPickler.dumps(command)
        with HELD:
            # The order matters: an exception that is not due to a Ctrl-C may be raised between any two lines.
            self._in_message = True
            self._unanswered += 1
            try:
                self.pipe.send_bytes(message)
            except ConnectionError:  # The worker has ended.
                self._in_message = False
                raise
            self._in_message = False

    def recv(self) -> Any:
        """Wait for the answer to the last command, and return it; ``None`` if no answer is outstanding."""
        answer = None
        while self._unanswered or self._in_message:
            answer = self.receive(None)
        return answer

    def receive(self, seconds: float | None) -> Any:
        """Wait for the next answer to any command.

        :param seconds: how long to wait; ``None`` for no limit
        :raises Unanswered: if there is no answer in that time
        :raises EOFError: if the worker has ended
        :raises WorkerError: if the pipe contains an incomplete message
        """
        self._check()
        if not self._wait(seconds):
            raise Unanswered
        with HELD:
            self._in_message = True
            try:
                message = self.pipe.recv_bytes()
            except (EOFError, ConnectionError):
                self._in_message = False
                raise
            self._unanswered -= 1
            self._in_message = False
        self.last = ForkingPickler.loads(message)
        return self.last

    def _check(self) -> None:
        if self._in_message:
            problem = "was cut off in the middle of a message: close its vectorised environment and make a new one"
            raise WorkerError(self._env_index, problem)

    @property
    def closed(self) -> bool:
        """Whether the pipe is closed."""
        return self.pipe.closed

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is something to receive."""
        return self.pipe.poll(timeout)

    def close(self) -> None:
        """Close the pipe."""
        self.pipe.close()


def _waits_for(pipe: Connection, process: BaseProcess | None) -> Callable[[float | None], bool]:
    """Return a function that waits for something to receive, with an optional limit in seconds.

    The function returns whether there is something to receive. It raises an ``EOFError`` if the process ends without
    having sent anything.
    """
    if not hasattr(select, "poll"):
        return pipe.poll
    # Register once, because multiprocessing creates a new poll object for each call.
    poll, number = select.poll(), pipe.fileno()
    poll.register(number, select.POLLIN)
    if process is not None:
        poll.register(process.sentinel, select.POLLIN)

    def wait(seconds: float | None) -> bool:
        ready = poll.poll(None if seconds is None else 1000 * seconds)
        if len(ready) == 1 and ready[0][0] != number:
            raise EOFError
        return bool(ready)

    return wait


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
