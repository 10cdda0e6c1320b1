"""An interrupt at a random line of an update: the update is made, or it is not, as a whole."""

import sys
from copy import deepcopy
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch as th
from fuzzing import fuzz
from hypothesis import assume, given
from hypothesis import strategies as st
from models import State, collected, state_of

pytestmark = pytest.mark.filterwarnings("ignore")


class Interrupter:
    """Counts the lines that Python runs, and raises a ``KeyboardInterrupt`` at one of them."""

    def __init__(self, at: int | None):
        self.lines = 0
        self._at = at

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self._at:
                raise KeyboardInterrupt
        return self


def train(model: Any, at: int | None) -> int:
    """Update a model, with an interrupt at a line.

    :return: the lines run
    """
    interrupter = Interrupter(at)
    np.random.seed(3)
    sys.settrace(interrupter)
    try:
        model.train()
    except KeyboardInterrupt:
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


@fuzz(examples=25, endless=50)
@given(model=collected(), fast=st.booleans(), place=st.floats(0, 1), late=st.booleans())
def test_interrupts(model: Any, fast: bool, place: float, late: bool) -> None:
    model.fast = fast
    whole = deepcopy(model)
    before, n_lines = comparable(model), train(whole, None)
    after = comparable(whole)
    assume(all(th.isfinite(tensor).all() for tensor in after["policy"].values()))
    # Many of the interrupts go to the end, where the update is written.
    train(model, 1 + int((n_lines - 1) * (1 - (1 - place) / 20 if late else place)))
    left = comparable(model)
    try:
        assert is_same(left, before) or is_same(left, after)
        made = model._n_updates
        model.learn(1)
        assert model._n_updates > made
    finally:
        th.set_grad_enabled(True)  # An interrupt may have left gradients off, and ``learn`` leaves them as they were.


def comparable(model: Any) -> State:
    """The state, in types that PyTorch compares."""
    state = state_of(model)
    optimizers = [optimizer["state"] for optimizer in state["optimizers"]]
    return {**state, "optimizers": optimizers, "kl_coef": state["kl_coef"] or 0.0}
