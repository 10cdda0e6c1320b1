"""Runs that can be resumed: an algorithm that continues from a checkpoint, and the callback that writes checkpoints."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback

from sb3_ppo_variants.arguments import COUNT, FLAG, LEARN_RULES, RULES, instance
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.algorithm import FileAlgorithm
from sb3_ppo_variants.saving.checkpoint import (
    MODEL,
    Checkpoint,
    check_comparable,
    check_folder,
    find_checkpoint,
    get_arguments,
    remove_older,
)
from sb3_ppo_variants.saving.plain import Values
from sb3_ppo_variants.saving.state import begin_episodes, seed_evaluations, walk

Self = TypeVar("Self", bound="SavedAlgorithm")
PATH = instance("a path", str, os.PathLike)
HIDDEN = (
    "Pass ExactCheckpointCallback to learn() directly, alone or in a list: inside another callback, it does not see "
    "where rollouts begin"
)


class TrainingRun:
    """The progress of a model's run, which continues across calls of ``learn`` and ``resume``."""

    def __init__(self) -> None:
        # The last checkpoint that was written or resumed from, and the steps and updates of the model when it was
        # resumed.
        self.last: Checkpoint | None = None
        self.resumed_at: tuple[int, int] | None = None
        # The iterations before this call of learn(), and its log interval if it continues to count them.
        self.iterations = 0
        self.log_interval: int | None = None
        self._collecting = False
        # Whether the last call of learn() ended with an error or an interrupt, and whether a callback stopped it in any
        # of the processes.
        self.failed = self.stopped = False
        # The model's arguments when the run began, as objects that later updates replace.
        self.began_with: dict[str, object] | None = None

    def resumed_from(self, model: FileAlgorithm) -> Checkpoint | None:
        """Return the checkpoint that the model was resumed from, or ``None`` once it has been trained further."""
        return self.last if (model.num_timesteps, model._n_updates) == self.resumed_at else None

    def begin(self, model: FileAlgorithm, log_interval: int | None, reset_num_timesteps: bool) -> int | None:
        """Begin a call of ``learn`` with these arguments, and return the log interval for SB3.

        A resumed run continues to count iterations. A run that was stopped during a rollout begins new episodes.
        """
        self.failed = self.stopped = False
        if self.began_with is None or reset_num_timesteps:
            self.began_with = get_arguments(model)
        if self._collecting:
            # The environments may have taken a step that the model did not see.
            model._last_obs = None
            self._collecting = False
        checkpoint = None if reset_num_timesteps else self.resumed_from(model)
        if checkpoint is None:
            self.iterations, self.log_interval = 0, None
            return log_interval
        self.iterations, self.log_interval = checkpoint.iterations, log_interval
        return log_interval and 1  # SB3 counts the iterations of each call from 0, so dump_logs() chooses among all.

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Mark that a rollout is being collected. The mark remains if the rollout is cut short."""
        self._collecting = True
        yield
        self._collecting = False


class SavedAlgorithm(FileAlgorithm):
    """An on-policy algorithm whose files are crash-safe and checked, and whose training can be resumed."""

    @cached_property
    def run(self) -> TrainingRun:
        """The state of the run, for checkpoints."""
        return TrainingRun()

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "run"]

    @classmethod
    def resume(
        cls: type[Self],
        path: str | Path,
        env: GymEnv | VectorEnv,
        device: th.device | str = "auto",
        custom_objects: Values | None = None,
    ) -> Self:
        """Continue a run from a checkpoint of :class:`~sb3_ppo_variants.ExactCheckpointCallback`.

        Then call ``model.learn(model.remaining_timesteps, reset_num_timesteps=False, callback=...)`` with the callbacks
        of the run. Training then continues exactly as the run would have, bit for bit. The state of the global random
        generators is restored.

        :param path: a checkpoint, or a folder of checkpoints, of which the newest undamaged one is used
        :param env: an environment created like that of the run, with the same wrappers
        :param device: ``"auto"`` is the device of the run, on which alone training continues exactly
        :param custom_objects: as in :meth:`load`
        :raises FileNotFoundError: if there is no checkpoint
        :raises DamagedFileError: if all checkpoints are damaged, naming them
        :raises ArgumentError: if ``env`` is None, or if the number of environments or processes, or the
            ``VecNormalize`` wrappers of ``env``, differ from those of the run
        """
        if env is None:
            raise ArgumentError("env=None, but resume() needs an environment like that of the run")
        checkpoint = find_checkpoint(Path(path))
        device = checkpoint.device if device == "auto" else device
        model = cls.load(checkpoint.folder / MODEL, env, device, custom_objects)
        checkpoint.restore(model)
        model.run.last, model.run.resumed_at = checkpoint, (model.num_timesteps, model._n_updates)
        return model

    @classmethod
    def resume_or_start(
        cls: type[Self],
        path: str | Path,
        policy: str | type[BasePolicy],
        env: GymEnv | VectorEnv | str,
        **arguments: object,
    ) -> Self:
        """Resume the run in a folder of checkpoints, or create a new model if there are none.

        Use this with :meth:`learn_to` in scripts that are submitted repeatedly. Schedules are compared by some of their
        values, and your own objects that are not dataclasses by their text. All arguments after ``path`` are those of
        the constructor.

        :param path: the folder of the checkpoints
        :raises ArgumentError: if an argument other than ``device``, ``verbose`` and ``tensorboard_log``, passed or by
            default, differs from that of the run, if the model does not keep one that was passed as an attribute of
            the same name, or as in :meth:`resume`
        :raises DamagedFileError: if all checkpoints are damaged, naming them
        """
        model = cls(policy, env, **arguments)  # type: ignore[arg-type]
        check_comparable(model, arguments)
        try:
            checkpoint = find_checkpoint(Path(path))
        except FileNotFoundError:
            return model
        assert model.env is not None
        resumed = cls.resume(checkpoint.folder, model.env, model.device)
        checkpoint.check_arguments(model, resumed)
        resumed.verbose, resumed.tensorboard_log = model.verbose, model.tensorboard_log
        return resumed

    def learn_to(self: Self, total_timesteps: float, callback: MaybeCallback = None, **arguments: Any) -> Self:
        """Train until the run has taken this many environment steps. Do nothing if it already has.

        :param total_timesteps: number of steps of the whole run, such as 1e6, rounded up to whole rollouts
        :param arguments: further arguments of ``learn``, except ``reset_num_timesteps``
        :raises ArgumentError: if ``reset_num_timesteps`` is passed, or as in ``learn``
        """
        if "reset_num_timesteps" in arguments:
            raise ArgumentError("learn_to() takes no reset_num_timesteps, because it continues the run: use learn()")
        LEARN_RULES["total_timesteps"].check("total_timesteps", total_timesteps)
        missing = total_timesteps - self.num_timesteps
        if missing > 0:
            begins = self.num_timesteps == 0 and self.run.resumed_from(self) is None
            self.learn(cast(int, missing), callback, reset_num_timesteps=begins, **arguments)
        return self

    @property
    def remaining_timesteps(self) -> int:
        """The number of environment steps that the last call of ``learn`` has not taken yet."""
        return max(self._total_timesteps - self.num_timesteps, 0)

    def dump_logs(self, iteration: int = 0) -> None:
        """Write the log as SB3 does, if it is due after this rollout.

        :param iteration: number of the rollout within this call of ``learn``; 0 to write the log unconditionally
        """
        number, interval = iteration and self.run.iterations + iteration, self.run.log_interval
        if iteration == 0 or interval is None or number % interval == 0:
            super().dump_logs(number)


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
    the best mean reward of ``EvalCallback``. Your own keep the attributes that they name in ``remembered``, a tuple of
    strings. The state of wrappers other than ``VecNormalize`` is not saved.

    :param every: environment steps between checkpoints, >= 1
    :param path: folder for the checkpoints
    :param keep_last: number of checkpoints to keep; ``None`` keeps all. Only checkpoints are ever removed, and none to
        which you have added files
    :param at_end: whether to write another checkpoint when training ends, unless an error or an interrupt ended it. If
        a callback did, in the middle of a rollout, the checkpoint counts its steps, of which the policy learns nothing
    :param verbose: 1 prints the name of each checkpoint
    :raises ArgumentError: if an argument has a value that is not allowed; when training begins, if the folder contains
        checkpoints of another run or anything else that would be replaced, if there is a second callback of this kind,
        if a checkpoint cannot hold what a callback of yours names in ``remembered``, or if the model cannot be resumed
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
        self._every, self._folder, self._keep_last, self._at_end = every, Path(path).resolve(), keep_last, at_end
        self._rollouts_begun = self._rollouts_ended = 0

    def _init_callback(self) -> None:
        if not isinstance(self.model, SavedAlgorithm):
            name = type(self.model).__name__
            raise ArgumentError(f"ExactCheckpointCallback needs an algorithm of sb3_ppo_variants, not {name}")
        if self.parent is not None:
            raise RuntimeError(HIDDEN)

    def _on_training_start(self) -> None:
        self._all: BaseCallback = self.locals["callback"]
        if sum(isinstance(one, ExactCheckpointCallback) for one in walk(self._all)) > 1:
            raise ArgumentError(
                "callback contains several ExactCheckpointCallbacks: pass one, because checkpoints start new episodes"
            )
        self._rollouts_begun = self._rollouts_ended = 0
        run, reached = self.model.run, -1
        if run.last is not None and run.last.folder.parent == self._folder:
            if run.last.num_timesteps <= self.model.num_timesteps:
                reached = run.last.num_timesteps
        elif run.resumed_from(self.model) is None:
            run.last = None  # A checkpoint is then due at once in this folder.
        check_folder(self._folder, reached)

    def _on_rollout_start(self) -> None:
        run = self.model.run
        if checkpoint := run.resumed_from(self.model):
            # Restore once more, because code that ran after resume() may have drawn random numbers.
            checkpoint.restore(self.model)
            checkpoint.restore_callback(self._all, self.model.processes.rank)
        elif run.last is None or not 0 <= self.model.num_timesteps - run.last.num_timesteps < self._every:
            self._write()
        self._rollouts_begun += 1

    def _write(self) -> None:
        model, run = self.model, self.model.run
        # A rollout that a callback stopped is not an iteration.
        iterations = run.iterations + self._rollouts_begun - run.stopped
        checkpoint = Checkpoint.capture(model, self._all, self._folder, iterations, run.last, run.began_with or {})
        checkpoint.write(model)
        buffers = [*model.policy.buffers()]
        # It has the buffers of rank 0, such as running means, and no process may look for it before.
        own = [buffer.cpu() for buffer in buffers] if model.processes.rank == 0 else []
        saved = model.processes.exchange("has a checkpoint", own)[0]
        if model.processes.rank > 0:
            for buffer, of_rank_0 in zip(buffers, saved, strict=True):
                buffer.copy_(of_rank_0)
        run.last, run.resumed_at = checkpoint, None
        # Begin new episodes as a resumed run does.
        begin_episodes(model, checkpoint.seed, model.processes.rank)
        seed_evaluations(self._all, checkpoint.seed, checkpoint.num_timesteps)
        if model.processes.rank > 0:
            return
        if self._keep_last is not None:
            remove_older(checkpoint, self._keep_last)
        if self.verbose >= 1:
            print(f"Saved the checkpoint {checkpoint.folder}")

    def _on_rollout_end(self) -> None:
        self._rollouts_ended += 1

    def _on_training_end(self) -> None:
        run = self.model.run
        # What an error or an interrupt cut short has no state to continue from. A rollout that a callback stopped has
        # that before the rollout, with which new episodes begin.
        whole = 0 < self._rollouts_begun == self._rollouts_ended or run.stopped
        # The RL Zoo ends the training of its first callback twice.
        is_written = run.last is not None and run.last.num_timesteps == self.model.num_timesteps
        if self._at_end and whole and not (is_written or run.failed):
            self._write()

    def _on_step(self) -> bool:
        if self._rollouts_begun == 0:
            raise RuntimeError(HIDDEN)
        return True
