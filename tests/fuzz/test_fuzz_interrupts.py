"""An interrupt at a random line: the update is applied completely or not at all, and training can continue."""

import sys
from collections.abc import Callable
from copy import deepcopy
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch as th
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from models import PATHS, State, along, collected, state_of

from sb3_ppo_variants import NonFiniteError

pytestmark = pytest.mark.filterwarnings("ignore")


class Interrupter:
    """Counts the lines that Python executes, and raises a ``KeyboardInterrupt`` at one of them."""

    def __init__(self, at: int | None):
        self.lines = 0
        self._at = at

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self._at:
                raise KeyboardInterrupt
        return self


def interrupted(function: Callable[[], Any], at: int | None) -> int:
    """Call a function and interrupt it at a line.

    :return: the number of executed lines
    """
    interrupter = Interrupter(at)
    np.random.seed(3)
    th.manual_seed(3)
    sys.settrace(interrupter)
    try:
        function()
    except (KeyboardInterrupt, NonFiniteError):
        pass
    finally:
        sys.settrace(None)
    return interrupter.lines


def is_same(one: State, other: State) -> bool:
    try:
        th.testing.assert_close(one, other, rtol=0, atol=0)
    except AssertionError:
        return False
    return True


def comparable(model: Any) -> State:
    """Return the state in types that PyTorch can compare."""
    state = state_of(model)
    optimizers = [optimizer["state"] for optimizer in state["optimizers"]]
    return {**state, "optimizers": optimizers, "kl_coef": state["kl_coef"] or 0.0}


@fuzz(examples=15, endless=60)
@given(model=collected(), path=st.sampled_from(PATHS), alone=st.booleans(), place=st.floats(0, 1), late=st.booleans())
def test_interrupts(model: Any, path: str, alone: bool, place: float, late: bool) -> None:
    """The line differs between machines; the assertions hold for every line."""

    def update(model: Any) -> None:
        model.train() if alone else model.learn(1)

    whole = deepcopy(model)
    try:
        with along(path, whole):
            before, n_lines = comparable(model), interrupted(lambda: update(whole), None)
        after = comparable(whole)
        with along(path, model):
            # Place half of the interrupts near the end, where the update is written.
            interrupted(lambda: update(model), 1 + int((n_lines - 1) * (1 - (1 - place) / 20 if late else place)))
            left = comparable(model)
            assert is_same(left, before) or is_same(left, after)
            assert alone or th.is_grad_enabled()
            assert goes_on(model)
    finally:
        th.set_grad_enabled(True)  # An interrupt of ``train`` alone may have left gradients disabled.


def goes_on(model: Any) -> bool:
    """Check that a model trains or says why it cannot, because some of these random networks are extreme."""
    made = model._n_updates
    try:
        model.learn(1)
    except NonFiniteError:
        return True
    return bool(model._n_updates > made)
