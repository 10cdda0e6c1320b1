"""Checkpoints: everything that a run needs to continue as if it had not been interrupted.

A checkpoint is a folder such as ``step_000050000``. It contains the model in ``model.zip`` and any ``VecNormalize`` in
``vecnormalize.pkl``, both of which SB3 can read; everything else as plain values in ``state.json``; and the hashes of
these files in ``SHA256SUMS``.
"""

import json
import os
import secrets
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from sb3_ppo_variants.errors import ArgumentError, DamagedFileError, refuse
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.atomic import new_folder, remove_folder
from sb3_ppo_variants.saving.environments import begin_episodes, pickle_normalizations, restore_normalizations
from sb3_ppo_variants.saving.hashes import HASHES, read_hashed, write_hashes
from sb3_ppo_variants.saving.random_state import RandomState
from sb3_ppo_variants.saving.remembered import Memories, memories_of, remind, seed_evaluations
from sb3_ppo_variants.saving.same_run import arguments_of

if TYPE_CHECKING:
    from sb3_ppo_variants.saving.algorithm import SavedAlgorithm

MODEL = "model.zip"
STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two rollouts.

    :param folder: folder of this checkpoint
    :param num_timesteps: environment steps of the run so far
    :param iterations: rollouts since ``learn`` was called
    :param n_envs: number of environments
    :param seed: seed of the run, from which the seeds of the environments are derived
    :param random_states: states of the global random generators of each process
    :param logged: values that are recorded but not yet written to the log, in the three dictionaries of the logger
    :param normalizations: states of the ``VecNormalize`` wrappers
    :param memories: states of the callbacks of each process; checkpoints of version 0.1.0 have none
    :param arguments: the model's arguments at the first checkpoint of the run; those of version 0.1.0 have none
    """

    folder: Path
    num_timesteps: int
    iterations: int
    n_envs: int
    seed: int
    random_states: list[RandomState]
    logged: list[dict[str, Any]]
    normalizations: list[bytes]
    memories: list[Memories] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def capture(
        cls,
        model: "SavedAlgorithm",
        callback: BaseCallback,
        folder: Path,
        iterations: int,
        last: "Checkpoint | None",
    ) -> "Checkpoint":
        """Capture the state of a model between two rollouts.

        A model without a seed takes that of the last checkpoint, or a random one if there is no last checkpoint.
        """
        seed = model.seed
        if seed is None:
            seed = secrets.randbits(32) if last is None else last.seed
        assert model.env is not None
        each = model.processes.exchange("writes a checkpoint", (seed, RandomState.capture(), memories_of(callback)))
        return cls(
            folder=folder / _name(model.num_timesteps),
            num_timesteps=model.num_timesteps,
            iterations=iterations,
            n_envs=model.env.num_envs,
            seed=each[0][0],
            random_states=[random_state for _, random_state, _ in each],
            logged=_recorded(model.logger),
            normalizations=pickle_normalizations(model.env),
            memories=[memories for *_, memories in each],
            arguments=(last and last.arguments) or arguments_of(model),
        )

    @classmethod
    def read(cls, folder: Path) -> "Checkpoint":
        """Read a checkpoint and check all of its files.

        :raises DamagedFileError: if a file is missing or damaged
        """
        files = read_hashed(folder)
        _check_names(folder, files, [MODEL, STATE])
        state = plain.decode(json.loads(files[STATE]))
        names = _normalization_files(state.pop("n_normalizations"))
        _check_names(folder, files, names)
        # Checkpoints of earlier versions hold the state of a single process.
        states = state.pop("random_states", None) or [state.pop("random_state")]
        random_states = [RandomState(**values) for values in states]
        return cls(folder, random_states=random_states, normalizations=[files[name] for name in names], **state)

    def write(self, model: "SavedAlgorithm") -> None:
        """Write the checkpoint, so that it appears complete or not at all. Only rank 0 writes.

        :raises OSError: if the checkpoint cannot be written, or another run has written one in the meantime
        """
        if model.processes.rank > 0:
            return  # The model is the same in all processes.
        if os.path.lexists(self.folder) and not is_replaceable(self.folder):
            raise FileExistsError(f"{self.folder} is not a checkpoint or contains other files, so it is not replaced")
        self._check_is_first()
        state = asdict(self)
        del state["folder"], state["normalizations"]
        names = _normalization_files(len(self.normalizations))
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(self.folder) as folder:
            model.save(folder / MODEL)
            (folder / STATE).write_text(json.dumps(plain.encode({**state, "n_normalizations": len(names)})))
            for name, content in zip(names, self.normalizations, strict=True):
                (folder / name).write_bytes(content)
            write_hashes(folder)

    def _check_is_first(self) -> None:
        """:raises FileExistsError: if another run has written a checkpoint of this step or a later one"""
        for step, path in entries_by_step(self.folder.parent).items():
            if step >= self.num_timesteps and is_checkpoint(path) and is_whole(path):
                raise FileExistsError(
                    f"{path} was written during this training, so another run that may still be training writes its "
                    "checkpoints there too: end one of them, or choose another folder for it"
                )

    @property
    def model_file(self) -> Path:
        """The file of the model, which SB3 can read."""
        return self.folder / MODEL

    def restore(self, model: "SavedAlgorithm") -> None:
        """Restore the state of a model's environment and of the global random generators, and begin new episodes.

        :raises ArgumentError: if the run cannot continue in this environment, or with this number of processes
        """
        env = model.env
        assert env is not None
        if env.num_envs != self.n_envs:
            refuse("env.num_envs", env.num_envs, f"{self.n_envs}, as the run had")
        processes = model.processes
        if processes.size != len(self.random_states):
            raise ArgumentError(
                f"the run had {len(self.random_states)} processes and cannot be resumed exactly with {processes.size}; "
                f"load({str(self.model_file)!r}) continues training without that guarantee"
            )
        restore_normalizations(env, self.normalizations)
        model.statistics.agree(env)
        self.random_states[processes.rank].restore()
        self.begin_episodes(model)

    def restore_callback(self, callback: BaseCallback, rank: int) -> None:
        """Restore the values that were recorded but not yet written to the log, and the state of the callbacks."""
        for values, saved in zip(_recorded_by(callback.logger), self.logged, strict=True):
            values.clear()
            values.update(saved)
        if self.memories:
            remind(callback, self.memories[rank])
        self.begin_evaluations(callback)

    def begin_evaluations(self, callback: BaseCallback) -> None:
        """Seed the next evaluations from this checkpoint."""
        seed_evaluations(callback, self.seed, self.num_timesteps)

    def begin_episodes(self, model: "SavedAlgorithm") -> None:
        """Begin new episodes, seeded from this checkpoint."""
        rank = [model.processes.rank] if model.processes.rank else []
        (seed,) = np.random.SeedSequence([self.seed, self.num_timesteps, *rank]).generate_state(1)
        begin_episodes(model, int(seed) >> 1)  # Some environments only accept 31 bits.


def _check_names(folder: Path, files: dict[str, bytes], names: list[str]) -> None:
    for name in names:
        if name not in files:
            raise DamagedFileError(str(folder), HASHES, f"does not name {name}")


def _recorded_by(logger: Logger) -> list[dict[str, Any]]:
    return [logger.name_to_value, logger.name_to_count, logger.name_to_excluded]


def _recorded(logger: Logger) -> list[dict[str, Any]]:
    """Return the recorded values, except those without a plain form, such as figures."""
    keys = [key for key, value in logger.name_to_value.items() if plain.is_plain(value)]
    return [{key: values[key] for key in keys if key in values} for values in _recorded_by(logger)]


def _normalization_files(number: int) -> list[str]:
    # SB3 reads the first file, which belongs to the outermost wrapper.
    return [f"vecnormalize_{i}.pkl" if i > 0 else "vecnormalize.pkl" for i in range(number)]


def _name(step: int) -> str:
    return f"step_{step:09d}"


def entries_by_step(folder: Path) -> dict[int, Path]:
    """Return everything in a folder that has the name of a checkpoint, by step, newest first."""
    steps = {path: path.name.removeprefix("step_") for path in folder.glob("step_*")}
    found = {int(step): path for path, step in steps.items() if step.isdecimal() and path.name == _name(int(step))}
    return dict(sorted(found.items(), reverse=True))


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is a checkpoint, which may be damaged. An empty folder counts as one without its files."""
    names = os.listdir(path) if path.is_dir() else ["not a folder"]
    return not names or HASHES in names or STATE in names


def is_replaceable(path: Path) -> bool:
    """Return whether a path is a checkpoint and contains nothing else, so that nothing of the user's can be lost."""
    if path.is_symlink() or not is_checkpoint(path):
        return False
    names = os.listdir(path)
    return {MODEL, STATE, HASHES, *_normalization_files(len(names))}.issuperset(names)


def remove_older(checkpoint: Checkpoint, keep_last: int) -> None:
    """Keep the last ``keep_last`` checkpoints up to and including the given one, and remove older ones."""
    entries = entries_by_step(checkpoint.folder.parent).items()
    older = [path for step, path in entries if step < checkpoint.num_timesteps and is_checkpoint(path)]
    for path in filter(is_replaceable, older[keep_last - 1 :]):
        remove_folder(path)


def is_whole(folder: Path) -> bool:
    """Return whether all files of a checkpoint are present and undamaged."""
    try:
        Checkpoint.read(folder)
    except DamagedFileError:
        return False
    return True


def find_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at a path, or the newest undamaged one in that folder, and warn of each newer damaged one.

    :raises FileNotFoundError: if there is no checkpoint
    :raises DamagedFileError: if all checkpoints are damaged
    """
    path = path.resolve()
    if (path / HASHES).exists() or (is_checkpoint(path) and path in entries_by_step(path.parent).values()):
        return Checkpoint.read(path)
    damaged: list[str] = []
    for folder in filter(is_checkpoint, entries_by_step(path).values()):
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
