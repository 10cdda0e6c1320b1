"""Delays a Ctrl-C until a few lines have finished."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Held:
    """A context that delays a Ctrl-C until its end; a second Ctrl-C takes effect at once.

    It has an effect only inside :func:`interrupts_can_be_held`, and entering it does not need a system call.
    """

    now = False
    came = False

    def __enter__(self) -> None:
        self.now = True

    def __exit__(self, *_: object) -> None:
        self.now = False
        if self.came:
            self.came = False
            signal.raise_signal(signal.SIGINT)


HELD = Held()


@contextmanager
def interrupts_can_be_held() -> Iterator[None]:
    """Let :data:`HELD` delay interrupts while the context is active.

    Python delivers signals only to the main thread, so there is nothing to delay in other threads. The same is true if
    SIGINT has no Python handler.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if HELD.now and not HELD.came:
            HELD.came = True
        else:
            before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:  # A callback may have set its own handler.
            signal.signal(signal.SIGINT, before)
