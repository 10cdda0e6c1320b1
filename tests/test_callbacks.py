"""A callback decides whether training continues, and is told of its end exactly once, however it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)

from helpers import BOX, NoiseEnv, small
from sb3_ppo_variants import CallbackError, ExactCheckpointCallback
from sb3_ppo_variants.callbacks import Supervised
from sb3_ppo_variants.collector import Told


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


class Keeps(Forgets):
    """Has attributes with the names of those of SB3's callbacks."""

    callbacks = {"a": 1}  # noqa: RUF012
    callback = "b"


SILENT: dict[str, tuple[Callable[[], Any], str]] = {
    "a callback": (lambda: Forgets(), "Forgets"),
    "a callback with other attributes": (lambda: Keeps(), "Keeps"),
    "a function": (lambda: forgets, "forgets"),
    "in a list": (lambda: [Answers(), Forgets(), Answers()], "Forgets"),
    "after one that stops": (lambda: [Answers(False), Forgets()], "Forgets"),
    "before one that stops": (lambda: [Forgets(), Answers(False)], "Forgets"),
    "in a CallbackList": (lambda: CallbackList([Forgets(), Answers()]), "Forgets or Answers"),
    "of an event": (lambda: EveryNTimesteps(4, Forgets()), "Forgets"),
    "of an evaluation": (lambda: evaluates(callback_after_eval=Forgets()), "Forgets"),
    "of a better evaluation": (lambda: [Answers(), evaluates(callback_on_new_best=Forgets())], "Forgets"),
    "of an event in a list of an event": (
        lambda: EveryNTimesteps(4, CallbackList([EveryNTimesteps(4, Forgets())])),
        "Forgets",
    ),
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


def test_no_callback_and_no_callbacks() -> None:
    callbacks: list[Any] = [None, [], CallbackList([]), StopTrainingOnMaxEpisodes(100), lambda *_: True]
    for callback in callbacks:
        assert small().learn(64, callback).num_timesteps == 64


class Reads(Answers):
    """Notes the number of each step that it is called at, as its locals have it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def _on_step(self) -> bool:
        self.steps.append(self.locals["n_steps"])
        return True


QUIET: dict[str, Callable[[Path], Any]] = {
    "none": lambda folder: None,
    "checkpoints": lambda folder: CheckpointCallback(32, str(folder)),
    "exact checkpoints": lambda folder: ExactCheckpointCallback(32, folder / "exact"),
    "evaluations": lambda folder: [evaluates()],
    "evaluations that stop": lambda folder: CallbackList(
        [
            evaluates(
                callback_on_new_best=StopTrainingOnRewardThreshold(1e9),
                callback_after_eval=StopTrainingOnNoModelImprovement(99),
            )
        ]
    ),
    "checkpoints at events": lambda folder: EveryNTimesteps(8, CheckpointCallback(1, str(folder))),
}


@pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped")
@pytest.mark.parametrize("name", QUIET)
def test_sb3s_callbacks_that_read_nothing_are_told_nothing(name: str, tmp_path: Path) -> None:
    callback = QUIET[name](tmp_path)
    small(fast=True).learn(64, callback, progress_bar=True)
    assert Supervised(callback, progress_bar=True).told is Told.NOTHING
    for one in callback if isinstance(callback, list) else [callback]:
        assert one is None or "new_obs" not in one.locals


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


class Evaluates(Answers):
    """Compares its locals with what the policy computes."""

    def _on_step(self) -> bool:
        policy: Any = self.model.policy
        of_step = self.locals
        with th.no_grad():
            values, log_probs, _ = policy.evaluate_actions(of_step["obs_tensor"], th.as_tensor(of_step["actions"]))
        assert of_step["values"].shape == (2, 1) and of_step["log_probs"].shape == (2,)
        th.testing.assert_close(of_step["values"], values)
        th.testing.assert_close(of_step["log_probs"], log_probs)
        return True


@pytest.mark.parametrize("fast", [False, True])
def test_locals_are_what_the_policy_computed(fast: bool) -> None:
    small(fast=fast, n_steps=16).learn(64, Evaluates())


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
