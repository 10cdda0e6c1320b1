"""An interrupt at any line of an update leaves the model either as before the update or as after it."""

import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import masked_envs
from recurrence import SMALL, ragged_envs
from stable_baselines3.common.vec_env import VecEnv

import sb3_ppo_variants
from helpers import ACTION_SPACES, BOX, VARIANTS, noise_envs
from sb3_ppo_variants import PPOAdaptiveKL, PPOCustom
from sb3_ppo_variants.checks import settings_kept
from sb3_ppo_variants.interrupts import HELD
from sb3_ppo_variants.objectives.surrogates import AdaptiveKL
from sb3_ppo_variants.snapshot import Snapshot

IMAGE = spaces.Box(0, 255, (1, 36, 36), np.uint8)
SMALL_CNN = {"features_extractor_kwargs": {"features_dim": 8}}
PACKAGE = str(sb3_ppo_variants.__path__[0])
PATHS: dict[str, tuple[str, Callable[[], VecEnv], dict[str, Any]]] = {
    "reference": ("MlpPolicy", lambda: noise_envs(BOX), {"fast": False}),
    "native": ("MlpPolicy", lambda: noise_envs(BOX), {}),
    "images": ("CnnPolicy", lambda: noise_envs(BOX, IMAGE), {"policy_kwargs": SMALL_CNN}),
    "gSDE": ("MlpPolicy", lambda: noise_envs(BOX), {"use_sde": True}),
    "masks": ("MaskableMlpPolicy", lambda: masked_envs(ACTION_SPACES["Discrete"], n_envs=2), {}),
    "LSTM": ("MlpLstmPolicy", lambda: ragged_envs(n_envs=2), {"policy_kwargs": SMALL}),
}


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    if request.param in ("native", "gSDE", "masks"):
        request.getfixturevalue("natively")
    return request.param


def ready(cls: Any, path: str, separate: bool) -> Any:
    """Create a model that has trained and has a new rollout in its buffer."""
    policy, make_env, arguments = PATHS[path]
    arguments = {"fast": True, **arguments}
    if separate:
        arguments["updates"] = {"value_learning_rate": lambda progress: 1e-3 * progress}
        if path == "images":
            # With networks that are apart, images take the reference path.
            separate_kwargs = {**arguments["policy_kwargs"], "share_features_extractor": False}
            arguments |= {"policy_kwargs": separate_kwargs, "fast": False}
    if cls is PPOCustom:
        arguments["objective"] = AdaptiveKL(kl_coef=1.0, desired_kl=1e-9, clip_range=None)
    if cls is PPOAdaptiveKL:
        arguments["desired_kl"] = 1e-9
    model = cls(
        policy, make_env(), n_steps=4, batch_size=4, n_epochs=1, seed=0, device="cpu",
        learning_rate=lambda progress: 1e-2 * progress, **arguments,
    )  # fmt: skip
    model.learn(16)
    model.train = lambda: None
    model.learn(8, reset_num_timesteps=False)
    del model.train
    model._current_progress_remaining = 0.25  # This changes the learning rate.
    return model


def state(model: Any) -> dict[str, Any]:
    """Return everything that an update changes, in a form that can be compared."""
    optimizers = [model.policy.optimizer, *(getattr(model, name) for name in model._division.optimizers)]
    found = {
        "weights": model.policy.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "n_updates": model._n_updates,
        "beta": repr(getattr(model, "kl_coef", None)),
        "objective": getattr(model, "objective", None),
    }
    return deepcopy(found)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, th.Tensor):
        return th.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def seeded(model: Any) -> None:
    np.random.seed(0)
    th.manual_seed(0)
    model.train()


class Lines:
    """Counts the lines that Python executes, and raises a ``KeyboardInterrupt`` at one of them."""

    def __init__(self, wanted: Callable[[str], bool], at: int | None = None, sends_signal: bool = False):
        self._wanted, self._at, self._sends_signal = wanted, at, sends_signal
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        # Python only prints exceptions that a finalizer raises.
        return self._line if self._wanted(frame.f_code.co_filename) and frame.f_code.co_name != "__del__" else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._at:
                if not self._sends_signal:
                    raise KeyboardInterrupt
                signal.raise_signal(signal.SIGINT)  # The package may hold it for a moment.
        return self._line

    def trace(self, function: Callable[[], None]) -> None:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            function()
        finally:
            sys.settrace(before)


def of_package(file: str) -> bool:
    return file.startswith(PACKAGE)


def everywhere(file: str) -> bool:
    # An error raised by a trace function can leave a lock held after its ``with`` block, which a signal cannot: Python
    # handles none between the end of a block and the release. The lock of threadpoolctl would then block forever.
    return not file.startswith("<") and not file.endswith("threadpoolctl.py")


def whole_at(model: Any, wanted: Callable[[str], bool], places: Callable[[int], list[int]]) -> tuple[int, int]:
    """Interrupt the update at several lines, and count how often it is then undone and how often complete.

    :param wanted: whether to count the lines of a file
    :param places: the numbers of the lines to interrupt, given the total number of lines
    """
    before = state(model)
    spare = deepcopy(model.policy.state_dict()), deepcopy(before["optimizers"]), dict(model.__dict__)
    lines = Lines(wanted)
    lines.trace(lambda: seeded(model))
    after = state(model)
    assert not equal(after, before)
    undone = done = 0
    for at in [0, *places(lines.count)]:
        if at == 0 or equal(state(model), after):
            go_back(model, *spare)
            assert equal(state(model), before)
        if at == 0:
            continue
        # In callbacks from C, Python or PyTorch print an exception and ignore it.
        with suppress(KeyboardInterrupt), settings_kept():
            Lines(wanted, at).trace(lambda: seeded(model))
        assert th.is_grad_enabled()
        now = state(model)
        kept = {name for name in now if equal(now[name], before[name])}, {n for n in now if equal(now[n], after[n])}
        assert set(now) in kept, f"at line {at} of {lines.count}: {kept}"
        undone, done = undone + (set(now) == kept[0]), done + (set(now) == kept[1])
    go_back(model, *spare)
    seeded(model)
    assert equal(state(model), after)
    return undone, done


def go_back(model: Any, weights: Any, optimizers: Any, attributes: dict[str, Any]) -> None:
    model.policy.load_state_dict(weights)
    for name, each in zip(["policy", *model._division.optimizers], optimizers, strict=True):
        (model.policy.optimizer if name == "policy" else getattr(model, name)).load_state_dict(deepcopy(each))
    model.__dict__.update(attributes)


def every(n: int) -> list[int]:
    return [*range(1, n + 1)]


def some(n: int) -> list[int]:
    """Select every third of the last lines, where an update ends, and a few lines before."""
    return [*random.Random(n).sample(range(1, n - 50), 24), *range(n, n - 50, -3)]


CLASSES = [*VARIANTS, PPOCustom]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("separate", [False, True])
def test_at_lines_of_the_package(path: str, separate: bool) -> None:
    undone, done = whole_at(ready(PPOAdaptiveKL, path, separate), of_package, some)
    assert undone > 15 and done > 0


@pytest.mark.sampled(3)
def test_at_lines_of_all_that_it_calls(path: str) -> None:
    undone, done = whole_at(ready(PPOCustom, path, False), everywhere, some)
    assert undone > 10 and done > 0


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("cls", CLASSES)
def test_at_every_line_of_the_package(cls: Any, path: str, separate: bool) -> None:
    undone, done = whole_at(ready(cls, path, separate), of_package, every)
    assert undone > 100 and done > 0


def of_package_and_contexts(file: str) -> bool:
    return file.startswith(PACKAGE) or file.endswith("contextlib.py")


@pytest.mark.sampled(3)
def test_learning_goes_on_after_an_interrupt_anywhere(path: str) -> None:
    model = ready(PPOAdaptiveKL, path, False)
    learn = partial(model.learn, 8, reset_num_timesteps=False)
    lines = Lines(of_package_and_contexts)
    lines.trace(learn)
    names = set(vars(model.env))
    for at in random.Random(lines.count).sample(range(1, lines.count), 40):
        with suppress(KeyboardInterrupt):
            Lines(of_package_and_contexts, at, sends_signal=True).trace(learn)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        before = model.num_timesteps
        learn()
        assert model.num_timesteps == before + 8 and set(vars(model.env)) == names


def test_an_update_that_is_interrupted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Ctrl-C arrives while the model recovers from the first."""
    model = ready(PPOAdaptiveKL, "reference", False)
    before = state(model)
    restore = Snapshot.restore

    def interrupted(snapshot: Snapshot) -> None:
        if HELD.now:
            signal.raise_signal(signal.SIGINT)
        restore(snapshot)

    monkeypatch.setattr(Snapshot, "restore", interrupted)
    monkeypatch.setattr(PPOAdaptiveKL, "_after_update", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        model.learn(8, reset_num_timesteps=False)
    now = state(model)
    for optimizer in now["optimizers"]:
        assert optimizer["state"]
    del now["optimizers"], before["optimizers"]  # Their learning rates were set for another progress.
    assert equal(now, before)
