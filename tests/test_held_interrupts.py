"""A Ctrl-C that is held until a few lines are done."""

import signal
import threading

import pytest

from sb3_ppo_variants.guards.interrupts import HELD, interrupts_can_be_held


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


def test_a_thread_has_no_interrupts_to_hold() -> None:
    passed = []

    def other() -> None:
        with interrupts_can_be_held():
            passed.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert passed == [signal.default_int_handler]
