"""Callbacks."""

import os
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from sb3_ppo_variants.arguments.rules import COUNT, Rule
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.saving import SavedAlgorithm
from sb3_ppo_variants.saving.atomic import remove_folder
from sb3_ppo_variants.saving.checkpoint import Checkpoint
from sb3_ppo_variants.saving.checkpoints import folders_by_step, is_whole

PATH = Rule("a path", lambda value: isinstance(value, str | os.PathLike))


class ExactCheckpointCallback(BaseCallback):
    """Writes checkpoints from which a run can be resumed exactly, by ``resume`` of the model's class.

    There is one at the beginning of a run, and one whenever a rollout begins ``every`` or more steps after the last
    one; a resumed run, whose first one is that it was resumed from, may write its others to another folder. At
    each, all environments begin a new episode, seeded by the run's seed and the number of steps, in the run that goes
    on and in the one that is resumed. The episodes that are cut are treated as truncated: the value of their last
    observation stands for what would have followed. They are no part of the episode statistics.

    A run that is resumed needs the same callbacks in the same order. What other callbacks, and wrappers of environments
    other than ``VecNormalize``, keep for themselves is not saved.

    :param every: environment steps between two checkpoints, >= 1
    :param path: folder for the checkpoints
    :param keep_last: how many to keep; ``None`` keeps all
    :param verbose: 1 prints the name of each checkpoint
    :raises ArgumentError: if an argument is not allowed, or, when training begins, if the folder has checkpoints of
        another run or there is a second callback of this kind
    """

    model: SavedAlgorithm

    def __init__(self, every: int, path: str | os.PathLike[str], keep_last: int | None = 3, verbose: int = 0):
        super().__init__(verbose)
        COUNT.check("every", every)
        PATH.check("path", path)
        COUNT.or_none().check("keep_last", keep_last)
        self._every = every
        self._folder = Path(path).resolve()
        self._keep_last = keep_last
        self._iterations = 0
        self._knows_rollouts = False

    def _init_callback(self) -> None:
        if not isinstance(self.model, SavedAlgorithm):
            refuse("model", self.model, "one that can be resumed: an algorithm of sb3_ppo_variants")

    def _on_training_start(self) -> None:
        writers = _writers(self.locals["callback"])
        if len(writers) > 1:
            refuse("callback", writers, "one ExactCheckpointCallback, because its checkpoints cut episodes")
        self._iterations = self.model._iterations_before
        self._knows_rollouts = False
        last = self.model._checkpoint
        reached = -1
        if last is not None and last.folder.parent != self._folder and not self.model._is_resumed:
            self.model._checkpoint = None
        elif last is not None and last.folder.parent == self._folder and last.num_timesteps <= self.num_timesteps:
            reached = last.num_timesteps
        for step, folder in folders_by_step(self._folder).items():
            if step > reached and is_whole(folder):
                allowed = f"a folder without checkpoints of another run (it has {folder.name}, which resume() reads)"
                refuse("path", str(self._folder), allowed)

    def _on_rollout_start(self) -> None:
        self._knows_rollouts = True
        last = self.model._checkpoint
        if last is not None and self.model._is_resumed:
            # Here once more, where the first run was, since what came between may have drawn random numbers.
            last.restore(self.model)
            last.restore_log(self.logger)
        elif last is None or not 0 <= self.model.num_timesteps - last.num_timesteps < self._every:
            self._write(last)

    def _write(self, last: Checkpoint | None) -> None:
        checkpoint = Checkpoint.capture(self.model, self._folder, self._iterations, last)
        checkpoint.write(self.model)
        self.model._checkpoint = checkpoint
        if self._keep_last is not None:
            older = [path for step, path in folders_by_step(self._folder).items() if step < checkpoint.num_timesteps]
            for folder in older[self._keep_last - 1 :]:
                remove_folder(folder)
        if self.verbose >= 1:
            print(f"Saved the checkpoint {checkpoint.folder}")
        checkpoint.begin_episodes(self.model)

    def _on_rollout_end(self) -> None:
        self._iterations += 1

    def _on_step(self) -> bool:
        if not self._knows_rollouts:
            raise RuntimeError(
                "ExactCheckpointCallback was not told where rollouts begin: give it to learn() itself, alone or in a "
                "list, and not to another callback"
            )
        return True


def _writers(callback: BaseCallback) -> list[ExactCheckpointCallback]:
    if isinstance(callback, CallbackList):
        return [found for child in callback.callbacks for found in _writers(child)]
    return [callback] if isinstance(callback, ExactCheckpointCallback) else []
