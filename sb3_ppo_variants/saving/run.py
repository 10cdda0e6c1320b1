"""Where a run stands: the checkpoint that it has reached and the iterations that it counts on from."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.checkpoint import Checkpoint, folders_by_step, is_whole

# The attributes that hold arguments of other names, and the arguments that change nothing in a run.
ATTRIBUTES = {"policy": "policy_class", "stats_window_size": "_stats_window_size"}
MAY_DIFFER = ("device", "verbose", "tensorboard_log", "_init_setup_model")
if TYPE_CHECKING:
    from sb3_ppo_variants.saving.algorithm import SavedAlgorithm


class Run:
    """A model's run, which goes on through calls of ``learn`` and through ``resume``."""

    def __init__(self) -> None:
        # The checkpoint written or resumed from last.
        self._last: Checkpoint | None = None
        # The steps and updates of the model when it was resumed.
        self._resumed_at: tuple[int, int] | None = None
        self._iterations_before = 0
        self._log_interval: int | None = None
        self._collecting = False

    def resume(self, model: "SavedAlgorithm", checkpoint: Checkpoint) -> None:
        """Put the environment of a model that a checkpoint holds, and the random generators, where they were.

        :raises ArgumentError: if the run cannot go on in this environment
        """
        checkpoint.restore(model)
        self._last, self._resumed_at = checkpoint, _trained(model)

    def resumed_from(self, model: "SavedAlgorithm") -> Checkpoint | None:
        """The checkpoint that the model was resumed from; ``None`` once it has been trained further."""
        return self._last if _trained(model) == self._resumed_at else None

    def begin(self, model: "SavedAlgorithm", log_interval: int, reset_num_timesteps: bool) -> int:
        """Begin a call of ``learn`` with these arguments, and return the log interval for SB3.

        A resumed run counts iterations on. One that was stopped within a rollout begins new episodes.
        """
        if self._collecting:
            # The environments may have taken a step that the model has not seen.
            model._last_obs = None
            self._collecting = False
        checkpoint = None if reset_num_timesteps else self.resumed_from(model)
        self._iterations_before = 0 if checkpoint is None else checkpoint.iterations
        self._log_interval = None if checkpoint is None else log_interval
        # SB3 counts iterations from 0, so that it must offer each of them to is_logged().
        return log_interval if checkpoint is None else log_interval and 1

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """What is cut short within it was cut short in a rollout."""
        self._collecting = True
        yield
        self._collecting = False

    def iteration(self, number: int) -> int:
        """The number in the whole run of an iteration of the present ``learn``."""
        return self._iterations_before + number

    def is_logged(self, number: int) -> bool:
        """Whether the log is written after an iteration of the present ``learn``."""
        return self._log_interval is None or self.iteration(number) % self._log_interval == 0

    def enter(self, model: "SavedAlgorithm", folder: Path) -> None:
        """Begin to write checkpoints to a folder.

        :raises ArgumentError: if it has checkpoints of another run, or later ones than this run has reached
        """
        last, reached = self._last, -1
        if last is not None and last.folder.parent == folder:
            if last.num_timesteps <= model.num_timesteps:
                reached = last.num_timesteps
        elif self.resumed_from(model) is None:
            self._last = None  # This folder needs a checkpoint at once.
        for step, path in folders_by_step(folder).items():
            if step > reached and is_whole(path):
                raise ArgumentError(
                    f"path={str(folder)!r} contains {path.name}, a checkpoint of another run. Choose another folder, "
                    "or continue that run with resume()"
                )

    def is_due(self, model: "SavedAlgorithm", every: int) -> bool:
        """Whether the last checkpoint is ``every`` or more steps old, or there is none."""
        return self._last is None or not 0 <= model.num_timesteps - self._last.num_timesteps < every

    def write(self, model: "SavedAlgorithm", callback: BaseCallback, folder: Path, number: int) -> Checkpoint:
        """Write a checkpoint after an iteration of the present ``learn``, and begin new episodes as ``resume`` does.

        :param callback: all callbacks of the run
        :raises OSError: if it cannot be written
        """
        checkpoint = Checkpoint.capture(model, callback, folder, self.iteration(number), self._last)
        checkpoint.write(model)
        self._last, self._resumed_at = checkpoint, None
        checkpoint.begin_episodes(model)
        checkpoint.begin_evaluations(callback)
        return checkpoint


def _trained(model: "SavedAlgorithm") -> tuple[int, int]:
    return model.num_timesteps, model._n_updates


def check_same_run(path: Path, given: BaseAlgorithm, resumed: BaseAlgorithm, names: Iterable[str]) -> None:
    """Check that a model was made with the arguments of the run that another one goes on with.

    What has no plain form, such as a function, cannot be compared.

    :raises ArgumentError: for the first argument that differs
    """
    for name in names:
        value, of_run = (getattr(model, ATTRIBUTES.get(name, name), None) for model in (given, resumed))
        comparable = plain.is_plain(value) and plain.is_plain(of_run)
        if name not in MAY_DIFFER and comparable and plain.encode(value) != plain.encode(of_run):
            raise ArgumentError(
                f"{name}={value!r}, but the run in {path} has {of_run!r}. Choose another folder for another run, or "
                "continue that one as it was"
            )
