"""A Ctrl-C that waits for a few lines to end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Held:
    """A context in which a Ctrl-C takes effect at its end, and a second one at once.

    It holds within :func:`interrupts_can_be_held` alone, where it costs no call of the system.
    """

    def __init__(self) -> None:
        self.now = False
        self.came = False

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
    """Within it :data:`HELD` has an effect.

    Python delivers signals to the main thread: in others there is nothing to hold. Nor is there where no function of
    Python handles them.
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
        if signal.getsignal(signal.SIGINT) is handle:  # Unless a callback has set its own.
            signal.signal(signal.SIGINT, before)
