"""The callbacks of a run: :class:`ExactCheckpointCallback`, and what supervises all of them."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, ProgressBarCallback
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_ppo_variants.arguments.rules import COUNT, FLAG, RULES, instance
from sb3_ppo_variants.errors import ArgumentError, CallbackError
from sb3_ppo_variants.saving import SavedAlgorithm
from sb3_ppo_variants.saving.checkpoint import remove_older

PATH = instance("a path", str, os.PathLike)


class ExactCheckpointCallback(BaseCallback):
    """Writes checkpoints from which the ``resume`` method of the model's class resumes a run exactly.

    The first checkpoint is written when training begins, and the next whenever a rollout begins ``every`` or more steps
    after the last checkpoint. A resumed run may write to another folder.

    At each checkpoint, all environments begin a new episode with seeds that depend on the run's seed and the number of
    steps, both in the original run and in a resumed one. Episodes cut short by this are treated as truncated: the value
    of their last observation stands in for the rest of the return. They do not appear in the episode statistics.

    If several processes train together, rank 0 writes one checkpoint for all of them. Resume with the same number of
    processes.

    Resume a run with the same callbacks in the same order. SB3's own callbacks keep their counters and records, such as
    the best mean reward of ``EvalCallback``. The state of your own callbacks, and of wrappers other than
    ``VecNormalize``, is not saved.

    :param every: environment steps between checkpoints, >= 1
    :param path: folder for the checkpoints
    :param keep_last: number of checkpoints to keep; ``None`` keeps all. Only checkpoints are ever removed, and none to
        which you have added files
    :param at_end: whether to write another checkpoint when training ends
    :param verbose: 1 prints the name of each checkpoint
    :raises ArgumentError: if an argument has a value that is not allowed; when training begins, if the folder contains
        checkpoints of another run or anything else that would be replaced, if there is a second callback of this kind,
        or if the model cannot be resumed
    """

    model: SavedAlgorithm

    def __init__(
        self,
        every: int,
        path: str | os.PathLike[str],
        keep_last: int | None = 3,
        verbose: int = 0,
        *,
        at_end: bool = False,
    ):
        super().__init__(verbose)
        COUNT.check("every", every)
        PATH.check("path", path)
        COUNT.or_none().check("keep_last", keep_last)
        FLAG.check("at_end", at_end)
        RULES["verbose"].check("verbose", verbose)
        self._every = every
        self._folder = Path(path).resolve()
        self._keep_last = keep_last
        self._at_end = at_end
        self._rollouts_begun = self._rollouts_ended = 0

    def _init_callback(self) -> None:
        if not isinstance(self.model, SavedAlgorithm):
            name = type(self.model).__name__
            raise ArgumentError(f"ExactCheckpointCallback needs an algorithm of sb3_ppo_variants, not {name}")

    def _on_training_start(self) -> None:
        self._all: BaseCallback = self.locals["callback"]
        if _n_writers(self._all) > 1:
            raise ArgumentError(
                "callback contains several ExactCheckpointCallbacks: pass one, because checkpoints start new episodes"
            )
        self._rollouts_begun = self._rollouts_ended = 0
        self.model.run.enter(self.model, self._folder)

    def _on_rollout_start(self) -> None:
        run = self.model.run
        if checkpoint := run.resumed_from(self.model):
            # Restore once more, because code that ran after resume() may have drawn random numbers.
            checkpoint.restore(self.model)
            checkpoint.restore_callback(self._all, self.model.processes.rank)
        elif run.is_due(self.model, self._every):
            self._write()
        self._rollouts_begun += 1

    def _write(self) -> None:
        checkpoint = self.model.run.write(self.model, self._all, self._folder, self._rollouts_begun)
        first = self.model.processes.rank == 0
        if first and self._keep_last is not None:
            remove_older(checkpoint, self._keep_last)
        if first and self.verbose >= 1:
            print(f"Saved the checkpoint {checkpoint.folder}")

    def _on_rollout_end(self) -> None:
        self._rollouts_ended += 1

    def _on_training_end(self) -> None:
        # Write only between iterations: a callback, an error or an interrupt may have cut a rollout or an update short.
        whole = 0 < self._rollouts_begun == self._rollouts_ended
        if self._at_end and whole and not (isinstance(self._all, Supervised) and self._all.failed):
            self._write()

    def _on_step(self) -> bool:
        if self._rollouts_begun == 0:
            raise RuntimeError(
                "ExactCheckpointCallback does not see where rollouts begin: pass it to learn() directly, alone or in a "
                "list, and not to another callback"
            )
        return True


def _n_writers(callback: BaseCallback) -> int:
    if isinstance(callback, CallbackList):
        return sum(map(_n_writers, callback.callbacks))
    return int(isinstance(callback, ExactCheckpointCallback))


class Supervised(CallbackList):
    """All callbacks of a run. They must not return ``None``, and ``on_training_end`` is called however training ends.

    :param callback: the argument of ``learn``: a callback, a function, a list of them or ``None``
    :param progress_bar: whether to show SB3's progress bar
    """

    def __init__(self, callback: MaybeCallback, progress_bar: bool):
        given = callback if isinstance(callback, list) else [] if callback is None else [callback]
        callbacks = [one if isinstance(one, BaseCallback) else ConvertCallback(one) for one in given]
        bars = [_ProgressBar()] if progress_bar else []
        super().__init__([*callbacks, *bars])
        self._training = False
        self.failed = False
        """Whether training ended with an error or an interrupt."""

    @contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Call ``on_training_end`` once before an error or an interrupt propagates out of the context."""
        try:
            yield
        except BaseException:
            self.failed = True
            if self._training:
                self.on_training_end()
            raise

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """Update the locals of the callbacks, which share one dict."""
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
                raise CallbackError(f"{names} returned None instead of True to continue training or False to stop it")
            go_on = bool(answer) and go_on
        return go_on

    def _on_training_end(self) -> None:
        self._training = False
        with ExitStack() as stack:  # It calls all of them, even if one raises an error.
            for callback in reversed(self.callbacks):
                stack.callback(callback.on_training_end)


class _ProgressBar(ProgressBarCallback):
    """SB3's progress bar, which counts the steps of all processes that train together."""

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._start = self.model.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(self.num_timesteps - self._start - self.pbar.n)
        return True


def _suspects(callback: BaseCallback) -> list[str]:
    """Return the names of callbacks that may have returned None: this one or those inside it, except SB3's own."""
    if isinstance(callback, ConvertCallback):
        return [getattr(callback.callback, "__name__", repr(callback.callback))]
    inside = [getattr(callback, name, None) for name in ("callback", "callback_on_new_best")]
    children = [*getattr(callback, "callbacks", []), *(child for child in inside if child is not None)]
    own = [] if type(callback).__module__.startswith("stable_baselines3.") else [type(callback).__name__]
    return [*own, *(name for child in children for name in _suspects(child))] or [type(callback).__name__]
