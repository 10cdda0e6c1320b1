"""Checkpoints: everything that a run needs to continue as if it had not been interrupted, and what writes them.

A checkpoint is a folder such as ``step_000050000``. It contains the model in ``model.zip`` and any ``VecNormalize`` in
``vecnormalize.pkl``, both of which SB3 can read; everything else as plain values in ``state.json``; and the hashes of
these files in ``SHA256SUMS``, in the format of ``sha256sum --check``.
"""

import json
import os
import pickle
import re
import secrets
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common import callbacks
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.arguments import COUNT, FLAG, RULES, Values, describe, instance, list_arguments
from sb3_ppo_variants.collector import Turn, begin_new_episodes
from sb3_ppo_variants.envs.adapter import has_attr, seed_env
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError
from sb3_ppo_variants.generators import get_random_state, set_random_state
from sb3_ppo_variants.processes import Statistics, find_normalizations
from sb3_ppo_variants.saving.files import decode, encode, is_plain, replacing, sha256

MODEL = "model.zip"
STATE = "state.json"
NORMALIZATION = "vecnormalize"
HASHES = "SHA256SUMS"
# The attributes of a logger with what is recorded but not yet written to the log.
RECORDS = ("name_to_value", "name_to_count", "name_to_excluded")
# Arguments of the constructor whose attributes have other names.
ATTRIBUTES = {"policy": "policy_class", "stats_window_size": "_stats_window_size"}
# Arguments that do not affect the results of a run.
MAY_DIFFER = ("env", "device", "verbose", "tensorboard_log", "_init_setup_model")
# The attributes of each class of callbacks that hold its state. They apply to subclasses too.
REMEMBERED: Mapping[type, Sequence[str]] = {
    BaseCallback: ("n_calls",),
    EvalCallback: (
        *("best_mean_reward", "last_mean_reward"),
        *("evaluations_timesteps", "evaluations_results", "evaluations_length", "evaluations_successes"),
    ),
    callbacks.EveryNTimesteps: ("last_time_trigger",),
    callbacks.StopTrainingOnMaxEpisodes: ("n_episodes",),
    callbacks.StopTrainingOnNoModelImprovement: ("last_best_mean_reward", "no_improvement_evals"),
}
# What a VecNormalize wrapper has from the environment inside it.
OF_ENV = ("venv", "observation_space", "action_space")
WALKER = "gymnasium.envs.box2d.bipedal_walker:BipedalWalker"


def begin_seeded_episodes(model: OnPolicyAlgorithm, seed: int, rank: int) -> None:
    """Begin a new episode in every environment, with random numbers that depend only on the seed, step and rank.

    Call this between rollouts: the advantages then treat the episodes that it cuts short as truncated by a time limit.
    """
    env = model.env
    assert env is not None
    (seed,) = _derive_seeds([seed, model.num_timesteps, *([rank] if rank else [])], 1)
    seed_episodes(env, seed)
    env.action_space.seed(seed)
    begin_new_episodes(model)
    if model.use_sde:
        model.policy.reset_noise(env.num_envs)


def _derive_seeds(numbers: list[int], n: int) -> list[int]:
    # Some environments only accept 31 bits.
    return [int(seed) >> 1 for seed in np.random.SeedSequence(numbers).generate_state(n)]


def seed_episodes(env: VecEnv, seed: int) -> None:
    """Make the next reset begin new episodes, with random numbers that depend only on the seed."""
    if has_attr(env, "was_real_done"):  # Otherwise an EpisodicLifeEnv continues with the next life.
        env.env_method("set_wrapper_attr", "was_real_done", True)
    if has_attr(env, "hardcore"):
        # Give each BipedalWalker a new world: what episodes leave in its own changes later ones, whatever the seed.
        for index, spec in enumerate(env.get_attr("spec")):
            if spec is not None and spec.entry_point == WALKER:
                made_with = {name: env.get_attr(name, index)[0] for name in ("_ezpickle_args", "_ezpickle_kwargs")}
                env.env_method("__setstate__", made_with, indices=index)
    seed_env(env, seed)


def get_memories(callback: BaseCallback) -> dict[str, list[Values]]:
    """Get the states of a callback and of the callbacks inside it, in their order, by the names of their classes.

    :raises ArgumentError: if a callback remembers a value that has no plain form
    """
    memories: dict[str, list[Values]] = defaultdict(list)
    for one in walk(callback):
        names = [name for cls, names in REMEMBERED.items() if isinstance(one, cls) for name in names]
        values = {name: getattr(one, name) for name in [*names, *getattr(one, "remembered", ())]}
        for name, value in values.items():
            if not is_plain(value):
                raise ArgumentError(
                    f"{type(one).__name__}.{name} is a {type(value).__name__}, which a checkpoint cannot hold: keep "
                    "it in numbers, strings, NumPy arrays, or lists, tuples and dictionaries of them"
                )
        memories[type(one).__qualname__].append(values)
    return dict(memories)


def seed_evaluations(callback: BaseCallback, seed: int, num_timesteps: int) -> None:
    """Seed the next evaluation of each ``EvalCallback`` with a number that depends only on the seed and the step."""
    evaluations = [one for one in walk(callback) if isinstance(one, EvalCallback)]
    seeds = _derive_seeds([seed, num_timesteps, len(evaluations)], len(evaluations))
    for evaluation, own_seed in zip(evaluations, seeds, strict=True):
        seed_episodes(evaluation.eval_env, own_seed)


def walk(callback: BaseCallback) -> Iterator[BaseCallback]:
    """Yield a callback and the callbacks inside it."""
    yield callback
    for child in inside(callback):
        yield from walk(child)


def inside(callback: BaseCallback) -> list[BaseCallback]:
    """List the callbacks that a callback of one of SB3's classes, or of a subclass, calls."""
    found: list[BaseCallback | None] = [*callback.callbacks] if isinstance(callback, callbacks.CallbackList) else []
    if isinstance(callback, callbacks.EventCallback):
        found += [callback.callback, getattr(callback, "callback_on_new_best", None)]
    return [child for child in found if child is not None]


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two rollouts.

    :param iterations: rollouts since ``learn`` was called
    :param seed: seed of the run, from which the seeds of the environments are derived
    :param random_states: states of the global random generators of each process
    :param logged: values that are recorded but not yet written to the log, in the three dictionaries of the logger
    :param normalizations: pickles of the ``VecNormalize`` wrappers, the outermost first
    :param memories: states of the callbacks of each process
    :param arguments: descriptions of the model's arguments when the run began
    :param device: the device of the model
    """

    folder: Path
    num_timesteps: int
    iterations: int
    n_envs: int
    seed: int
    random_states: list[Values]
    logged: list[Values]
    normalizations: list[bytes]
    memories: list[dict[str, list[Values]]]
    arguments: dict[str, str]
    device: str

    @classmethod
    def read(cls, folder: Path) -> "Checkpoint":
        """Read a checkpoint, and raise a :class:`DamagedFileError` if one of its files is missing or damaged."""
        try:
            lines = (folder / HASHES).read_text(errors="replace").splitlines()
            hashes = {name: expected for expected, _, name in (line.partition("  ") for line in lines)}
            contents = {name: (folder / name).read_bytes() for name in {MODEL, STATE, *hashes}}
        except (OSError, ValueError) as error:  # Damage to the hashes may name any file.
            raise DamagedFileError(str(folder), "the checkpoint", f"cannot be read: {error}") from error
        for name, content in contents.items():
            if sha256(content) != hashes.get(name):
                raise DamagedFileError(str(folder), name, "is not what was saved")
        normalizations = [contents[name] for name in hashes if name.startswith(NORMALIZATION)]
        return cls(folder, normalizations=normalizations, **decode(json.loads(contents[STATE])))

    def write(self, save: Callable[[Path], None]) -> None:
        """Write the checkpoint, so that it appears complete or not at all.

        :param save: saves the model at a path
        :raises OSError: if it cannot be written, or another run has written this checkpoint meanwhile
        """
        if self.folder.exists() and is_damaged(self.folder):
            shutil.rmtree(self.folder)
        values = {name: value for name, value in vars(self).items() if name not in ("folder", "normalizations")}
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder) as folder:
            folder.mkdir()
            save(folder / MODEL)
            (folder / STATE).write_text(json.dumps(encode(values)))
            for i, content in enumerate(self.normalizations):
                # SB3 reads the first file, which belongs to the outermost wrapper.
                (folder / (f"{NORMALIZATION}_{i:03d}.pkl" if i else f"{NORMALIZATION}.pkl")).write_bytes(content)
            hashes = [f"{sha256(file.read_bytes())}  {file.name}\n" for file in sorted(folder.iterdir())]
            (folder / HASHES).write_text("".join(hashes))
        for left in self.folder.parent.glob(".step_*.tmp"):  # By a job that was killed.
            shutil.rmtree(left)

    def restore(self, model: Any) -> None:
        """Restore the state of a model's environment and of the global random generators, and begin new episodes."""
        env, processes = model.env, model.processes
        if env.num_envs != self.n_envs:
            raise ArgumentError(
                f"env has {env.num_envs} environments, but the run in {self.folder.parent} had {self.n_envs}: pass as "
                "many, or choose another folder for another run"
            )
        if processes.size != len(self.random_states):
            raise ArgumentError(
                f"the run had {len(self.random_states)} processes and cannot be resumed exactly with {processes.size}; "
                f"load({str(self.folder / MODEL)!r}) continues training without that guarantee"
            )
        wrappers = find_normalizations(env)
        if len(wrappers) != len(self.normalizations):
            raise ArgumentError(
                f"env has {len(wrappers)} VecNormalize wrappers, but the run had {len(self.normalizations)}"
            )
        for wrapper, pickled in zip(wrappers, self.normalizations, strict=True):
            saved = vars(pickle.loads(pickled))
            vars(wrapper).update({name: value for name, value in saved.items() if name not in OF_ENV})
        model.run.statistics.agree(env)
        set_random_state(self.random_states[processes.rank])
        begin_seeded_episodes(model, self.seed, processes.rank)

    def restore_callback(self, callback: BaseCallback, rank: int) -> None:
        """Restore the values that were recorded but not yet written to the log, and the state of the callbacks.

        A callback without saved state starts afresh.
        """
        for name, saved in zip(RECORDS, self.logged, strict=True):
            values = vars(callback.logger)[name]
            values.clear()
            values.update(saved)
        left = {name: iter(of_class) for name, of_class in self.memories[rank].items()}
        for one in walk(callback):
            vars(one).update(next(left.get(type(one).__qualname__, iter(())), {}))
        seed_evaluations(callback, self.seed, self.num_timesteps)


@dataclass
class TrainingRun:
    """The progress of a model's run, which continues across calls of ``learn`` and ``resume``.

    :param last: the last checkpoint that was written or resumed from
    :param resumed_at: the steps and updates of the model when it was resumed
    :param iterations: complete rollouts since ``learn`` was called, here or in the run that was resumed
    :param log_interval: the argument of this call of ``learn``
    :param failed: whether an error or an interrupt ended the last call of ``learn``
    :param collecting: whether a rollout is being collected, or an error has cut it short
    :param turn: notices that somebody else steps the environments; ``None`` before the first rollout
    :param arguments: descriptions of the model's arguments when the run began
    :param statistics: those of ``VecNormalize`` that the processes have in common
    :param warned: whether the model has warned of observations that are normalised twice, or without statistics
    :param has_begun: whether a rollout or an update of this model has begun, so that schedules may be called
    :param forgotten: calls of ``predict`` in a row without a state
    :param untrained: the parameters that no optimizer trains, as far as there was a warning of them
    :param learner: the thread that learns
    """

    last: Checkpoint | None = None
    resumed_at: tuple[int, int] | None = None
    iterations: int = 0
    log_interval: int | None = None
    failed: bool = False
    collecting: bool = False
    turn: Turn | None = None
    arguments: dict[str, str] | None = None
    statistics: Statistics = field(default_factory=Statistics)
    warned: bool = False
    has_begun: bool = False
    forgotten: int = 0
    untrained: Sequence[str] = ()
    learner: int | None = None

    def resumed_from(self, model: OnPolicyAlgorithm) -> Checkpoint | None:
        """Return the checkpoint that the model was resumed from, or ``None`` once it has been trained further."""
        return self.last if (model.num_timesteps, model._n_updates) == self.resumed_at else None

    def begin(self, model: OnPolicyAlgorithm, log_interval: int | None, reset_num_timesteps: bool) -> int | None:
        """Begin a call of ``learn`` with these arguments, and return the log interval for SB3.

        A resumed run continues to count iterations. A run that was stopped during a rollout begins new episodes.
        """
        if self.arguments is None or reset_num_timesteps:
            self.arguments = describe_arguments(model)
        if self.collecting:
            model._last_obs = None  # The environments may have taken a step that the model did not see.
        checkpoint = None if reset_num_timesteps else self.resumed_from(model)
        self.failed = self.collecting = False
        self.iterations, self.log_interval = checkpoint.iterations if checkpoint else 0, log_interval
        return log_interval and 1  # SB3 counts the iterations of each call from 0, so dump_logs() chooses among all.


def describe_arguments(model: OnPolicyAlgorithm) -> dict[str, str]:
    """Describe the arguments of a model that affect the results of a run, as far as it keeps them as attributes."""
    names = [name for name in list_arguments(type(model)) if name not in MAY_DIFFER]
    return {name: describe(getattr(model, ATTRIBUTES.get(name, name), None)) for name in names}


def list_steps(folder: Path) -> dict[int, Path]:
    """List everything in a folder that has the name of a checkpoint, by step, newest first."""
    found = {int(path.name[5:]): path for path in folder.glob("step_*") if re.fullmatch(r"step_\d{9,}", path.name)}
    return dict(sorted(found.items(), reverse=True))


def is_damaged(path: Path) -> bool:
    """Whether a path with the name of a checkpoint is none, or a damaged one."""
    try:
        Checkpoint.read(path)
    except DamagedFileError:
        return True
    return False


def check_folder(folder: Path, reached: int) -> None:
    """Check that a run replaces nothing but damaged checkpoints of its own if it writes checkpoints to a folder.

    :param reached: the step of the last checkpoint of this run in the folder; -1 if there is none
    """
    for step, path in list_steps(folder).items():
        if step > reached and (reached < 0 or not is_damaged(path)):
            whose = "of another run" if reached < 0 else "beyond the checkpoint that this run continues from"
            raise ArgumentError(
                f"path={str(folder)!r} contains {path.name} {whose}. Choose another folder, or continue that run with "
                "resume()"
            )


def find_checkpoint(path: Path) -> Checkpoint:
    """Find the checkpoint at a path, or the newest undamaged one in that folder, and warn of newer damaged ones."""
    path = path.resolve()
    if path in list_steps(path.parent).values() or (path / HASHES).exists():
        return Checkpoint.read(path)
    damaged: list[str] = []
    for folder in list_steps(path).values():
        try:
            found = Checkpoint.read(folder)
        except DamagedFileError as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            warnings.warn(f"{message}; going back to {folder.name}")
        return found
    if not damaged:
        raise FileNotFoundError(f"There is no checkpoint in {path}")
    raise DamagedFileError(str(path), "every checkpoint", f"is damaged: {'; '.join(damaged)}")


class ExactCheckpointCallback(BaseCallback):
    """Writes checkpoints from which the ``resume`` method of the model's class resumes a run exactly.

    The first checkpoint is written when training begins, and the next whenever a rollout begins ``every`` or more steps
    after the last one. A resumed run may write to another folder.

    At each checkpoint, all environments begin a new episode with seeds that depend on the run's seed and the number of
    steps, in the original run and in a resumed one. The episodes that this cuts short count as truncated, and do not
    appear in the episode statistics.

    If several processes train together, rank 0 writes one checkpoint for all. Resume with as many processes.

    Resume a run with the same callbacks in the same order. SB3's own keep their counters and records, such as the best
    mean reward of ``EvalCallback``. Yours keep the attributes that they name in ``remembered``, a tuple of strings. The
    state of wrappers other than ``VecNormalize`` is not saved.

    :param every: environment steps between checkpoints, >= 1
    :param path: folder for the checkpoints
    :param keep_last: number of checkpoints to keep; ``None`` keeps all. Folders of older ones are removed
    :param at_end: whether to write another checkpoint when training ends, unless an error or an interrupt ended it. If
        a callback did, in the middle of a rollout, the checkpoint counts its steps, of which the policy learns nothing
    :param verbose: 1 prints the name of each checkpoint
    :raises ArgumentError: if an argument has a value that is not allowed; when training begins, if the folder contains
        checkpoints of another run, if this callback is inside another one or there are several, if a checkpoint cannot
        hold what a callback of yours names in ``remembered``, or if the model is none of this package
    """

    model: Any

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
        instance("a path", str, os.PathLike).check("path", path)
        COUNT.or_none().check("keep_last", keep_last)
        FLAG.check("at_end", at_end)
        RULES["verbose"].check("verbose", verbose)
        self._every, self._folder, self._keep_last, self._at_end = every, Path(path).resolve(), keep_last, at_end

    def _init_callback(self) -> None:
        if not isinstance(getattr(self.model, "run", None), TrainingRun):
            name = type(self.model).__name__
            raise ArgumentError(f"ExactCheckpointCallback needs an algorithm of sb3_ppo_variants, not {name}")
        if self.parent is not None:
            raise ArgumentError(
                "Pass ExactCheckpointCallback to learn() directly, alone or in a list: inside another callback, it "
                "does not see where rollouts begin"
            )

    def _on_training_start(self) -> None:
        self._all: BaseCallback = self.locals["callback"]
        if sum(isinstance(one, ExactCheckpointCallback) for one in walk(self._all)) > 1:
            raise ArgumentError(
                "callback contains several ExactCheckpointCallbacks: pass one, because checkpoints start new episodes"
            )
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
            checkpoint.restore(model)
            checkpoint.restore_callback(self._all, model.processes.rank)
        elif run.last is None or not 0 <= model.num_timesteps - run.last.num_timesteps < self._every:
            self._write()

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
        begin_seeded_episodes(model, checkpoint.seed, rank)
        seed_evaluations(self._all, checkpoint.seed, checkpoint.num_timesteps)
        if rank == 0 and self._keep_last is not None:
            earlier = [path for step, path in list_steps(self._folder).items() if step < checkpoint.num_timesteps]
            for path in earlier[self._keep_last - 1 :]:
                shutil.rmtree(path)
        if rank == 0 and self.verbose >= 1:
            print(f"Saved the checkpoint {checkpoint.folder}")

    def _capture(self) -> Checkpoint:
        """Capture the state of the run between two rollouts."""
        model, run, seed = self.model, self.model.run, self.model.seed
        if seed is None:  # The checkpoints of a run share one.
            seed = secrets.randbits(32) if run.last is None else run.last.seed
        own = seed, get_random_state(), get_memories(self._all)
        seeds, random_states, memories = zip(*model.processes.exchange("writes a checkpoint", own), strict=True)
        records = [vars(model.logger)[name] for name in RECORDS]
        # Figures, for example, have no plain form.
        keys = [key for key, value in model.logger.name_to_value.items() if is_plain(value)]
        return Checkpoint(
            folder=self._folder / f"step_{model.num_timesteps:09d}",
            num_timesteps=model.num_timesteps,
            iterations=run.iterations,
            n_envs=model.env.num_envs,
            seed=seeds[0],
            random_states=list(random_states),
            logged=[{key: values[key] for key in keys if key in values} for values in records],
            normalizations=[pickle.dumps(wrapper) for wrapper in find_normalizations(model.env)],
            memories=list(memories),
            arguments=(run.arguments or {}) if run.last is None else run.last.arguments,
            device=str(model.device),
        )

    def _on_training_end(self) -> None:
        # What an error or an interrupt cut short has no state to continue from. The RL Zoo ends the training of its
        # first callback twice.
        run = self.model.run
        is_written = run.last is not None and run.last.num_timesteps == self.model.num_timesteps
        if self._at_end and not (is_written or run.failed):
            self._write()

    def _on_step(self) -> bool:
        return True
