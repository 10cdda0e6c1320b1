"""Pipes to workers on which an answer is always that to the last command."""

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


class Exchange:
    """The parent's end of a pipe to a worker that answers each command once, in turn.

    An interrupt, an error or a time limit may keep an answer from being received; it is then dropped when the next one
    is. A Ctrl-C while a model learns waits for the message under way. What cuts one off nevertheless, such as a second
    Ctrl-C, leaves a part of it in the pipe, after which nothing is sent any more.

    :param pipe: the end of the pipe, without answers under way
    :param env_index: index of the worker's environment
    :param process: the worker, if its end may leave the pipe open, and to end it where it can not be asked to close
    """

    def __init__(self, pipe: Connection, env_index: int, process: BaseProcess | None = None):
        self.pipe = pipe
        self.last: Any = None
        """What was received last."""
        self._env_index = env_index
        self._process = process
        self._unanswered = 0
        self._in_message = False
        self._wait = _waits_for(pipe, process)

    @property
    def clean(self) -> bool:
        """Whether no answer is under way."""
        return not self._unanswered and not self._in_message

    @property
    def useless(self) -> bool:
        """Whether the pipe holds a part of a message."""
        return self._in_message

    def send(self, command: tuple[str, Any]) -> None:
        """Send a command.

        :raises WorkerError: if the pipe holds a part of a message
        """
        if self._process is not None and command[0] == "close":
            if self._in_message:
                self._process.terminate()
                return
            self.recv()  # A worker that can not send does not hear.
        self._check()
        message = ForkingPickler.dumps(command)
        with HELD:
            # In this order: what is raised by other means than a Ctrl-C may come between any two lines.
            self._in_message = True
            self._unanswered += 1
            try:
                self.pipe.send_bytes(message)
            except ConnectionError:  # The worker has ended.
                self._in_message = False
                raise
            self._in_message = False

    def recv(self) -> Any:
        """Wait for the answer to the last command; ``None`` if there was none."""
        answer = None
        while self._unanswered or self._in_message:
            answer = self.receive(None)
        return answer

    def receive(self, seconds: float | None) -> Any:
        """Wait for the next answer, to whatever command.

        :param seconds: how long; ``None`` for ever
        :raises TimeoutError: if there is none until then
        :raises EOFError: if the worker has ended
        :raises WorkerError: if the pipe holds a part of a message
        """
        self._check()
        if not self._wait(seconds):
            raise TimeoutError
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
    """Waits until there is something to receive, for some seconds or for ever, and says whether there is.

    It raises an ``EOFError`` if the process ends and has sent nothing.
    """
    if not hasattr(select, "poll"):
        return pipe.poll
    # multiprocessing makes one at each call.
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
    """Let a message fail with a ``BlockingIOError`` if it stops in its middle for so long.

    On Windows, where pipes have no such limit, it does nothing.
    """
    if sys.platform != "win32":
        with socket.socket(fileno=os.dup(pipe.fileno())) as end:
            end.setblocking(True)  # Whatever socket.setdefaulttimeout() says.
            limit = struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, limit)
