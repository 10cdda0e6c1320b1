"""A Ctrl-C that is held until a few lines are done, or that Python swallows."""

import signal
import sys
import threading
import time

import pytest

from sb3_ppo_variants.interrupts import HELD, interrupts_can_be_held


def test_a_held_interrupt_comes_at_the_end() -> None:
    passed = []
    with pytest.raises(KeyboardInterrupt), interrupts_can_be_held():
        with HELD:
            signal.raise_signal(signal.SIGINT)
            passed.append(1)
        passed.append(2)
    assert passed == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_comes_at_once() -> None:
    passed = []
    with pytest.raises(KeyboardInterrupt), interrupts_can_be_held(), HELD:
        signal.raise_signal(signal.SIGINT)
        passed.append(1)
        signal.raise_signal(signal.SIGINT)
        passed.append(2)
    assert passed == [1] and not HELD.now and not HELD.came


class Interrupted:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_destructor_is_not_lost() -> None:
    passed = []
    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), interrupts_can_be_held():
        Interrupted()
        passed.append(1)
        time.sleep(10)
        passed.append(2)
    assert passed == [1] and sys.unraisablehook is before


class Faulty:
    def __del__(self) -> None:
        raise ValueError


def test_errors_in_destructors_are_reported_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda swallowed: reported.append(swallowed.exc_type))
    with interrupts_can_be_held():
        Faulty()
    assert reported == [ValueError]


def test_a_thread_has_no_interrupts_to_hold() -> None:
    passed = []

    def other() -> None:
        with interrupts_can_be_held():
            passed.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert passed == [signal.default_int_handler]
