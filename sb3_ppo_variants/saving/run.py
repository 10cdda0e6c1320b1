"""The progress of a run: its last checkpoint, and the number of iterations before this call of ``learn``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stable_baselines3.common.callbacks import BaseCallback

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.checkpoint import Checkpoint, entries_by_step, is_checkpoint, is_replaceable, is_whole

if TYPE_CHECKING:
    from sb3_ppo_variants.saving.algorithm import SavedAlgorithm


class Run:
    """The run of a model, which continues across calls of ``learn`` and ``resume``."""

    def __init__(self) -> None:
        # The last checkpoint that was written or resumed from.
        self._last: Checkpoint | None = None
        # The steps and updates of the model when it was resumed.
        self._resumed_at: tuple[int, int] | None = None
        self._iterations_before = 0
        self._log_interval: int | None = None
        self._collecting = False

    def resume(self, model: "SavedAlgorithm", checkpoint: Checkpoint) -> None:
        """Restore the environment and the random generators for a model that was loaded from a checkpoint.

        :raises ArgumentError: if the run cannot continue in this environment, or with this number of processes
        """
        checkpoint.restore(model)
        self._last, self._resumed_at = checkpoint, _trained(model)

    def resumed_from(self, model: "SavedAlgorithm") -> Checkpoint | None:
        """Return the checkpoint that the model was resumed from, or ``None`` once it has been trained further."""
        return self._last if _trained(model) == self._resumed_at else None

    def begin(self, model: "SavedAlgorithm", log_interval: int, reset_num_timesteps: bool) -> int:
        """Begin a call of ``learn`` with these arguments, and return the log interval for SB3.

        A resumed run continues to count iterations. A run that was stopped during a rollout begins new episodes.
        """
        if self._collecting:
            # The environments may have taken a step that the model did not see.
            model._last_obs = None
            self._collecting = False
        checkpoint = None if reset_num_timesteps else self.resumed_from(model)
        self._iterations_before = 0 if checkpoint is None else checkpoint.iterations
        self._log_interval = None if checkpoint is None else log_interval
        # SB3 counts the iterations of each call from 0, so it must offer every one of them to is_logged().
        return log_interval if checkpoint is None else log_interval and 1

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Mark that a rollout is being collected. The mark remains if the rollout is cut short."""
        self._collecting = True
        yield
        self._collecting = False

    def iteration(self, number: int) -> int:
        """Return the number that an iteration of this call of ``learn`` has in the whole run."""
        return self._iterations_before + number

    def is_logged(self, number: int) -> bool:
        """Return whether to write the log after an iteration of this call of ``learn``."""
        return self._log_interval is None or self.iteration(number) % self._log_interval == 0

    def enter(self, model: "SavedAlgorithm", folder: Path) -> None:
        """Start writing checkpoints to a folder.

        :raises ArgumentError: if the folder contains checkpoints of another run, or ones beyond where this run is, or
            anything else with the name of a checkpoint that the run may write
        """
        last, reached = self._last, -1
        if last is not None and last.folder.parent == folder:
            if last.num_timesteps <= model.num_timesteps:
                reached = last.num_timesteps
        elif self.resumed_from(model) is None:
            self._last = None  # A checkpoint is then due at once in this folder.
        for step, path in entries_by_step(folder).items():
            if step > reached:
                _check_entry(path, of_this_run=reached >= 0)

    def is_due(self, model: "SavedAlgorithm", every: int) -> bool:
        """Return whether the last checkpoint is ``every`` or more steps old, or there is none."""
        return self._last is None or not 0 <= model.num_timesteps - self._last.num_timesteps < every

    def write(self, model: "SavedAlgorithm", callback: BaseCallback, folder: Path, number: int) -> Checkpoint:
        """Write a checkpoint after an iteration of this call of ``learn``, and begin new episodes as ``resume`` does.

        :param callback: all callbacks of the run
        :raises OSError: if the checkpoint cannot be written
        """
        checkpoint = Checkpoint.capture(model, callback, folder, self.iteration(number), self._last)
        checkpoint.write(model)
        self._last, self._resumed_at = checkpoint, None
        checkpoint.begin_episodes(model)
        checkpoint.begin_evaluations(callback)
        return checkpoint


def _check_entry(path: Path, of_this_run: bool) -> None:
    """Check that a checkpoint may replace this one, which is a damaged one of this run."""
    where = f"path={str(path.parent)!r} contains {path.name}"
    if is_checkpoint(path) and (not of_this_run or is_whole(path)):
        whose = "beyond the one that this run continues from" if of_this_run else "of another run"
        raise ArgumentError(f"{where}, a checkpoint {whose}. Choose another folder, or continue that run with resume()")
    if not is_replaceable(path):
        raise ArgumentError(
            f"{where}, which is not a checkpoint or contains other files, and would be replaced. Choose another "
            "folder, or move it"
        )


def _trained(model: "SavedAlgorithm") -> tuple[int, int]:
    return model.num_timesteps, model._n_updates
