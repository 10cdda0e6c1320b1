"""A callback decides whether training continues, and is told of its end exactly once, however it ends."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback, EveryNTimesteps

from helpers import BOX, NoiseEnv, small
from sb3_ppo_variants import CallbackError


class Answers(BaseCallback):
    """Returns the same answer at every step, and counts the calls at the start and the end of training."""

    def __init__(self, answer: Any = True):
        super().__init__()
        self.answer = answer
        self.started = self.ended = 0

    def _on_training_start(self) -> None:
        self.started += 1

    def _on_step(self) -> bool:
        return self.answer

    def _on_training_end(self) -> None:
        self.ended += 1


class Forgets(Answers):
    def __init__(self) -> None:
        super().__init__(None)


def forgets(locals_: dict, globals_: dict) -> Any:
    return None


def evaluates(**callbacks: Any) -> EvalCallback:
    return EvalCallback(NoiseEnv(BOX), n_eval_episodes=1, eval_freq=4, verbose=0, **callbacks)


SILENT: dict[str, tuple[Callable[[], Any], str]] = {
    "a callback": (lambda: Forgets(), "Forgets"),
    "a function": (lambda: forgets, "forgets"),
    "in a list": (lambda: [Answers(), Forgets(), Answers()], "Forgets"),
    "after one that stops": (lambda: [Answers(False), Forgets()], "Forgets"),
    "before one that stops": (lambda: [Forgets(), Answers(False)], "Forgets"),
    "in a CallbackList": (lambda: CallbackList([Forgets(), Answers()]), "Forgets or Answers"),
    "of an event": (lambda: EveryNTimesteps(4, Forgets()), "Forgets"),
    "of an evaluation": (lambda: evaluates(callback_after_eval=Forgets()), "Forgets"),
    "of a better evaluation": (lambda: [Answers(), evaluates(callback_on_new_best=Forgets())], "Forgets"),
    "of an event in a list": (lambda: EveryNTimesteps(4, CallbackList([EveryNTimesteps(4, Forgets())])), "Forgets"),
}


@pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped")
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", SILENT)
def test_a_callback_that_returns_none(name: str, fast: bool) -> None:
    make_callback, who = SILENT[name]
    message = f"^{who} returned None instead of True to continue training or False to stop it$"
    with pytest.raises(CallbackError, match=message):
        small(fast=fast).learn(64, make_callback())


@pytest.mark.parametrize(("answer", "steps"), [(True, 64), (np.True_, 64), (1, 64), (False, 2), (np.False_, 2), (0, 2)])
@pytest.mark.parametrize("nest", [lambda c: c, lambda c: [c], lambda c: CallbackList([c]), lambda c: [Answers(), c]])
def test_other_answers_are_those_of_sb3(nest: Any, answer: Any, steps: int) -> None:
    callback = Answers(answer)
    trained = small().learn(64, nest(callback))
    assert trained.num_timesteps == steps
    assert (callback.started, callback.ended) == (1, 1)


class Reads(Answers):
    """Notes the number of each step that it is called at, as its locals have it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def _on_step(self) -> bool:
        self.steps.append(self.locals["n_steps"])
        return True


@pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped")
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("nest", "steps"),
    [
        (lambda one: one, [*range(16)]),
        (lambda one: [evaluates(), CallbackList([one])], [*range(16)]),
        (lambda one: EveryNTimesteps(8, one), [3, 7, 11, 15]),
        (lambda one: evaluates(callback_after_eval=one), [3, 7, 11, 15]),
    ],
    ids=["alone", "in a list", "of an event", "of an evaluation"],
)
def test_callbacks_inside_sb3s_read_their_locals(nest: Any, steps: list[int], fast: bool) -> None:
    """There are 16 steps of 2 environments in a rollout."""
    reads = Reads()
    small(fast=fast, n_steps=16).learn(32, nest(reads))
    assert reads.steps == steps


class Raises(Answers):
    """Raises an error at a given place."""

    def __init__(self, place: str, error: BaseException):
        super().__init__()
        self.place, self.error = place, error

    def _at(self, place: str) -> None:
        if place == self.place:
            raise self.error

    def _on_rollout_start(self) -> None:
        self._at("rollout start")

    def _on_step(self) -> bool:
        if self.n_calls == 20:
            self._at("step")
        return True

    def _on_rollout_end(self) -> None:
        self._at("rollout end")

    def _on_training_end(self) -> None:
        super()._on_training_end()
        self._at("training end")


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), OSError("no space left")])
@pytest.mark.parametrize("place", ["rollout start", "step", "rollout end", "training end"])
def test_an_error_in_a_callback_passes_on(place: str, error: BaseException, fast: bool) -> None:
    first, last, raises = Answers(), Answers(), Raises(place, error)
    with pytest.raises(type(error)) as caught:
        small(fast=fast).learn(64, [first, raises, last])
    assert caught.value is error
    assert (first.ended, raises.ended, last.ended) == (1, 1, 1)


class Interrupted(NoiseEnv):
    def __init__(self, error: BaseException):
        super().__init__(BOX)
        self._error = error
        self._taken = 0

    def step(self, action: Any) -> Any:
        self._taken += 1
        if self._taken == 20:
            raise self._error
        return super().step(action)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space left")])
def test_an_error_in_an_environment_passes_on(error: BaseException, fast: bool) -> None:
    callback, env = Answers(), Interrupted(error)
    trained = small(env=env, fast=fast)
    with pytest.raises(type(error)) as caught:
        trained.learn(64, callback)
    assert caught.value is error
    assert (callback.started, callback.ended) == (1, 1)
    # Training continues normally.
    assert trained.learn(32, callback).num_timesteps == 32
    assert (callback.started, callback.ended) == (2, 2)
