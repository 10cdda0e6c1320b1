"""The callbacks of a run: which of them a process runs, and what becomes of their answers and errors."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_ppo_variants.collector import Reads
from sb3_ppo_variants.envs.masks import check_use
from sb3_ppo_variants.errors import ArgumentError, CallbackError
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.saving import ExactCheckpointCallback, SavedAlgorithm
from sb3_ppo_variants.saving.checkpoint import inside, walk

# Callbacks that evaluate or write files. Only rank 0 runs them.
ONCE = (CheckpointCallback, EvalCallback)


def own_callbacks(callback: MaybeCallback, processes: Processes) -> MaybeCallback:
    """Select the callbacks that a process runs: on ranks other than 0, none of those that evaluate or save.

    This searches a list of callbacks, but not callbacks within other callbacks.
    """
    if processes.rank == 0:
        return callback
    if isinstance(callback, CallbackList | list):
        given = callback.callbacks if isinstance(callback, CallbackList) else callback
        return [one for one in given if not isinstance(one, ONCE)]
    return None if isinstance(callback, ONCE) else callback


def check_evaluations(callback: BaseCallback, kind: PolicyKind) -> None:
    """Check that no evaluation will fail because it passes no masks, or drops the memory when it passes them.

    :raises ArgumentError: if one will
    """
    for one in walk(callback):
        forgets = kind.has_memory and type(one) is MaskableEvalCallback
        if kind.takes_masks and (type(one) is EvalCallback or forgets):
            problem = "drops the memory of the policy when it passes masks" if forgets else "passes no action masks"
            raise ArgumentError(
                f"callback: {type(one).__name__} {problem}: use sb3_ppo_variants.evaluation.MaskedEvalCallback, which "
                "takes the same arguments"
            )
        # That of sb3-contrib's callback and of this package's.
        check_use(getattr(one, "use_masking", None), kind.takes_masks, f"{type(one).__name__}: use_masking")


class Supervised(CallbackList):
    """All callbacks of a run. They must not return ``None``, and ``on_training_end`` is called however training ends.

    :param callback: the argument of ``learn``: a callback, a function, a list of them or ``None``
    :param progress_bar: whether to show SB3's progress bar
    """

    model: SavedAlgorithm

    def __init__(self, callback: MaybeCallback, progress_bar: bool):
        given = callback if isinstance(callback, list) else [] if callback is None else [callback]
        callbacks = [one if isinstance(one, BaseCallback) else ConvertCallback(one) for one in given]
        super().__init__([*callbacks, *([_ProgressBar()] if progress_bar else [])])
        self._started: list[BaseCallback] = []

    @contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Call ``on_training_end`` once before an error or an interrupt propagates out of the context."""
        try:
            yield
        except BaseException:
            if self._started:
                self.model.run.failed = True
                self.on_training_end()
            raise

    @property
    def reads(self) -> Reads:
        """What they read of each step."""
        each = (one for callback in self.callbacks for one in walk(callback))
        return max((_READS.get(type(one), Reads.ALL) for one in each), default=Reads.NOTHING)

    def update_locals(self, locals_: dict[str, object]) -> None:
        """Update the locals of the callbacks, which share one dict."""
        self.update_child_locals(locals_)

    def _on_training_start(self) -> None:
        for callback in self.callbacks:
            callback.on_training_start(self.locals, self.globals)
            self._started.append(callback)

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
        with ExitStack() as stack:  # It calls all of them, even if one raises an error.
            while self._started:
                stack.callback(self._started.pop().on_training_end)


class _ProgressBar(ProgressBarCallback):
    """SB3's progress bar, which counts the steps of all processes that train together."""

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._start = self.model.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(self.num_timesteps - self._start - self.pbar.n)
        return True


def set_reads(reads: Reads, *classes: type[BaseCallback]) -> None:
    """Say what callbacks of these classes read of a step, if they leave the policy as it is.

    Subclasses may do anything, and so may the callbacks inside them.
    """
    _READS.update(dict.fromkeys(classes, reads))


_READS: dict[type[BaseCallback], Reads] = {}
set_reads(Reads.ENVS, StopTrainingOnMaxEpisodes)
set_reads(Reads.NOTHING, CheckpointCallback, EvalCallback, ExactCheckpointCallback, ProgressBarCallback, _ProgressBar)
set_reads(Reads.NOTHING, StopTrainingOnNoModelImprovement, StopTrainingOnRewardThreshold, CallbackList, EveryNTimesteps)


def _suspects(callback: BaseCallback) -> list[str]:
    """List the names of callbacks that may have returned None: this one or those inside it, except SB3's own."""
    if isinstance(callback, ConvertCallback):
        return [getattr(callback.callback, "__name__", repr(callback.callback))]
    own = [] if type(callback).__module__.startswith("stable_baselines3.") else [type(callback).__name__]
    return [*own, *(name for child in inside(callback) for name in _suspects(child))] or [type(callback).__name__]
