"""Callbacks that are held to what is asked of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, ProgressBarCallback
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_ppo_variants.errors import CallbackError


class Supervised(CallbackList):
    """All callbacks of a run: each says whether to go on, and hears of the end of training, however it ends.

    :param callback: what ``learn`` takes: a callback, a function, a list of them or ``None``
    :param progress_bar: whether to show SB3's progress bar
    """

    def __init__(self, callback: MaybeCallback, progress_bar: bool):
        callbacks = callback if isinstance(callback, list) else [] if callback is None else [callback]
        bars = [ProgressBarCallback()] if progress_bar else []
        super().__init__([*map(_as_callback, callbacks), *bars])
        self._training = False

    @contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Within it an error or an interrupt ends training for the callbacks too, once, before it passes on."""
        try:
            yield
        except BaseException:
            if self._training:
                self.on_training_end()
            raise

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """As SB3's, but for the one dict that all callbacks share, which each of them updates."""
        self.update_child_locals(locals_)

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._training = True

    def _on_step(self) -> bool:
        go_on = True
        for callback in self.callbacks:
            answer = callback.on_step()
            if answer is None:
                names = " or ".join(_suspects(callback))
                raise CallbackError(f"{names} returned None; return True to go on or False to stop training")
            go_on = bool(answer) and go_on
        return go_on

    def _on_training_end(self) -> None:
        self._training = False
        super()._on_training_end()


def _as_callback(callback: Any) -> BaseCallback:
    return callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)


def _suspects(callback: BaseCallback) -> list[str]:
    """Names of what may have returned None, of a callback and those in it; SB3's own only pass it on."""
    if isinstance(callback, ConvertCallback):
        return [getattr(callback.callback, "__name__", repr(callback.callback))]
    inside = [getattr(callback, name, None) for name in ("callback", "callback_on_new_best")]
    children = [*getattr(callback, "callbacks", []), *(child for child in inside if child is not None)]
    own = [] if type(callback).__module__.startswith("stable_baselines3.") else [type(callback).__name__]
    return [*own, *(name for child in children for name in _suspects(child))] or [type(callback).__name__]
