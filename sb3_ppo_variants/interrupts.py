"""Delays a Ctrl-C until a few lines have finished, and repeats one that Python has swallowed."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SOON = 0.01  # seconds


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


def _interrupt() -> None:
    """Send SIGINT to the main thread from another thread."""
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # This also ends a wait of that thread.
    else:  # Windows
        signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupts_can_be_held() -> Iterator[None]:
    """Let :data:`HELD` delay interrupts while the context is active, and let none be lost.

    Python swallows what is raised in a destructor or in the callback of a weak reference. The handler of a Ctrl-C can
    run there, too.

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

    ignore = sys.unraisablehook

    def repeat(swallowed: "sys.UnraisableHookArgs") -> None:
        if issubclass(swallowed.exc_type, KeyboardInterrupt):
            # Within this function, it would be swallowed again.
            threading.Timer(SOON, _interrupt).start()
        else:
            ignore(swallowed)

    signal.signal(signal.SIGINT, handle)
    sys.unraisablehook = repeat
    try:
        yield
    finally:
        if sys.unraisablehook is repeat:
            sys.unraisablehook = ignore
        if signal.getsignal(signal.SIGINT) is handle:  # A callback may have set its own handler.
            signal.signal(signal.SIGINT, before)
