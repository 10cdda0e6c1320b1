"""The callback that writes the checkpoints of a run."""

import os
import secrets
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from sb3_ppo_variants.arguments import COUNT, FLAG, RULES, instance
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving import plain, state
from sb3_ppo_variants.saving.algorithm import SavedAlgorithm
from sb3_ppo_variants.saving.checkpoint import Checkpoint, check_folder, get_records, name_step, remove_older

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
    the best mean reward of ``EvalCallback``. Your own keep the attributes that they name in ``remembered``, a tuple of
    strings. The state of wrappers other than ``VecNormalize`` is not saved.

    :param every: environment steps between checkpoints, >= 1
    :param path: folder for the checkpoints
    :param keep_last: number of checkpoints to keep; ``None`` keeps all. Older folders of checkpoints are removed with
        all that is in them
    :param at_end: whether to write another checkpoint when training ends, unless an error or an interrupt ended it. If
        a callback did, in the middle of a rollout, the checkpoint counts its steps, of which the policy learns nothing
    :param verbose: 1 prints the name of each checkpoint
    :raises ArgumentError: if an argument has a value that is not allowed; when training begins, if the folder contains
        checkpoints of another run, if this callback is inside another one or there are several, if a checkpoint cannot
        hold what a callback of yours names in ``remembered``, or if the model is none of this package
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
            raise ArgumentError(
                "Pass ExactCheckpointCallback to learn() directly, alone or in a list: inside another callback, it "
                "does not see where rollouts begin"
            )

    def _on_training_start(self) -> None:
        self._all: BaseCallback = self.locals["callback"]
        if sum(isinstance(one, ExactCheckpointCallback) for one in state.walk(self._all)) > 1:
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
        model, run = self.model, self.model.run
        if checkpoint := run.resumed_from(model):
            # Restore once more, because code that ran after resume() may have drawn random numbers.
            checkpoint.restore(model, model.processes, model.statistics)
            checkpoint.restore_callback(self._all, model.processes.rank)
        elif run.last is None or not 0 <= model.num_timesteps - run.last.num_timesteps < self._every:
            self._write()
        self._rollouts_begun += 1

    def _write(self) -> None:
        model, run, rank = self.model, self.model.run, self.model.processes.rank
        checkpoint = self._capture()
        if rank == 0:
            checkpoint.write(model.save)
        # No process may look for the checkpoint before. It has the buffers of rank 0, such as running means.
        buffers = [*model.policy.buffers()]
        saved = model.processes.exchange("has a checkpoint", [buffer.cpu() for buffer in buffers] if rank == 0 else [])
        for buffer, of_rank_0 in zip(buffers, saved[0], strict=True):
            buffer.copy_(of_rank_0)
        run.last, run.resumed_at = checkpoint, None
        # Begin new episodes as a resumed run does.
        state.begin_episodes(model, checkpoint.seed, rank)
        state.seed_evaluations(self._all, checkpoint.seed, checkpoint.num_timesteps)
        if rank == 0 and self._keep_last is not None:
            remove_older(checkpoint, self._keep_last)
        if rank == 0 and self.verbose >= 1:
            print(f"Saved the checkpoint {checkpoint.folder}")

    def _capture(self) -> Checkpoint:
        """Capture the state of the run between two rollouts."""
        model, run = self.model, self.model.run
        assert model.env is not None
        seed = model.seed
        if seed is None:  # The checkpoints of a run share one.
            seed = secrets.randbits(32) if run.last is None else run.last.seed
        own = seed, state.get_random_state(), state.get_memories(self._all)
        seeds, random_states, memories = zip(*model.processes.exchange("writes a checkpoint", own), strict=True)
        records = get_records(model.logger)
        # Figures, for example, have no plain form.
        keys = [key for key, value in model.logger.name_to_value.items() if plain.is_plain(value)]
        return Checkpoint(
            folder=self._folder / name_step(model.num_timesteps),
            num_timesteps=model.num_timesteps,
            # A rollout that a callback stopped is not an iteration.
            iterations=run.iterations + self._rollouts_begun - run.stopped,
            n_envs=model.env.num_envs,
            seed=seeds[0],
            random_states=list(random_states),
            logged=[{key: values[key] for key in keys if key in values} for values in records],
            normalizations=state.pickle_normalizations(model.env),
            memories=list(memories),
            arguments=(run.arguments or {}) if run.last is None else run.last.arguments,
            device=str(model.device),
        )

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
        return True
