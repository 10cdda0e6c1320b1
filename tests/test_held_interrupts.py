"""A Ctrl-C that is held until a few lines are done, or that Python swallows."""

import signal
import sys
import time

import pytest

from sb3_ppo_variants.interrupts import HELD, interrupts_can_be_held


def test_a_held_interrupt_comes_at_the_end() -> None:
    passed, before = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts_can_be_held():
        with HELD:
            signal.raise_signal(signal.SIGINT)
            passed.append(1)
        passed.append(2)
    assert passed == [1]
    assert signal.getsignal(signal.SIGINT) is before


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
