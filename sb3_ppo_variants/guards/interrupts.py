"""Interrupts that wait for a few lines to end."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

Handler = Callable[[int, FrameType | None], object] | int | None


class deferred_interrupts:
    """A context in which a Ctrl-C takes effect at its end.

    Signals reach the main thread alone. In others there is nothing to defer, and neither is there where a handler was
    not set by Python, which could not be set again.
    """

    def __init__(self) -> None:
        self._before: Handler = None
        self._came = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is not None:
                signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            if self._came:
                signal.raise_signal(signal.SIGINT)
