"""Checkpoints: everything that a run needs to continue as if it had not been interrupted.

A checkpoint is a folder such as ``step_000050000``. It contains the model in ``model.zip`` and any ``VecNormalize`` in
``vecnormalize.pkl``, both of which SB3 can read; everything else as plain values in ``state.json``; and the hashes of
these files in ``SHA256SUMS``, in the format of ``sha256sum --check``.
"""

import json
import os
import secrets
import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from sb3_ppo_variants.arguments.checks import list_arguments
from sb3_ppo_variants.arguments.rules import describe
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError
from sb3_ppo_variants.saving import plain, state
from sb3_ppo_variants.saving.algorithm import FileAlgorithm
from sb3_ppo_variants.saving.archive import sha256
from sb3_ppo_variants.saving.atomic import remove_folder, replacing
from sb3_ppo_variants.saving.attributes import ATTRIBUTES
from sb3_ppo_variants.saving.plain import Values

MODEL = "model.zip"
STATE = "state.json"
HASHES = "SHA256SUMS"
# A pattern for the names of checkpoints.
STEP_FOLDERS = "step_*"
# Arguments that do not affect the results of a run.
MAY_DIFFER = ("env", "device", "verbose", "tensorboard_log", "_init_setup_model")


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two rollouts.

    :param iterations: rollouts since ``learn`` was called
    :param seed: seed of the run, from which the seeds of the environments are derived
    :param random_states: states of the global random generators of each process
    :param logged: values that are recorded but not yet written to the log, in the three dictionaries of the logger
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
    memories: list[state.Memories]
    arguments: dict[str, str]
    device: str

    @classmethod
    def capture(
        cls,
        model: FileAlgorithm,
        callback: BaseCallback,
        folder: Path,
        iterations: int,
        last: "Checkpoint | None",
        arguments: Mapping[str, object],
    ) -> "Checkpoint":
        """Capture the state of a model between two rollouts.

        A model without a seed takes that of the last checkpoint, or a random one if there is no last checkpoint.

        :param arguments: the model's arguments when the run began, unless the last checkpoint describes them
        """
        seed = model.seed
        if seed is None:
            seed = secrets.randbits(32) if last is None else last.seed
        assert model.env is not None
        own = seed, state.get_random_state(), state.get_memories(callback)
        seeds, random_states, memories = zip(*model.processes.exchange("writes a checkpoint", own), strict=True)
        return cls(
            folder=folder / _name_step(model.num_timesteps),
            num_timesteps=model.num_timesteps,
            iterations=iterations,
            n_envs=model.env.num_envs,
            seed=seeds[0],
            random_states=list(random_states),
            logged=_get_plain_records(model.logger),
            normalizations=state.pickle_normalizations(model.env),
            memories=list(memories),
            arguments=_describe_all(arguments) if last is None else last.arguments,
            device=str(model.device),
        )

    @classmethod
    def read(cls, folder: Path) -> "Checkpoint":
        """Read a checkpoint, and raise a :class:`DamagedFileError` if one of its files is missing or damaged."""
        lines = _read_file(folder, HASHES).decode(errors="replace").splitlines()
        hashes = {name: expected for expected, _, name in (line.partition("  ") for line in lines)}

        def read(name: str) -> bytes:
            if name not in hashes:
                raise DamagedFileError(str(folder), HASHES, f"does not name {name}")
            content = _read_file(folder, name)
            if sha256(content) != hashes[name]:
                raise DamagedFileError(str(folder), name, "is not what was saved")
            return content

        read(MODEL)
        values = plain.decode(json.loads(read(STATE)))
        names = _name_normalizations(values.pop("n_normalizations"))
        return cls(folder, normalizations=[read(name) for name in names], **values)

    def write(self, model: FileAlgorithm) -> None:
        """Write the checkpoint, so that it appears complete or not at all. Only rank 0 writes."""
        if model.processes.rank > 0:
            return  # The model is the same in all processes.
        for step, path in list_steps(self.folder.parent).items():
            if step >= self.num_timesteps and not is_replaceable(path):
                raise FileExistsError(
                    f"{path} was written during this training, so another run that may still be training writes its "
                    "checkpoints there too: end one of them, or choose another folder for it"
                )
        names = _name_normalizations(len(self.normalizations))
        values = {**asdict(self), "n_normalizations": len(names)}
        del values["folder"], values["normalizations"]
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder) as folder:
            folder.mkdir()
            model.save(folder / MODEL)
            (folder / STATE).write_text(json.dumps(plain.encode(values)))
            for name, content in zip(names, self.normalizations, strict=True):
                (folder / name).write_bytes(content)
            hashes = [f"{sha256(file.read_bytes())}  {file.name}\n" for file in sorted(folder.iterdir())]
            (folder / HASHES).write_text("".join(hashes))
        for left in self.folder.parent.glob(f".{STEP_FOLDERS}.tmp"):  # By a job that was killed.
            shutil.rmtree(left)

    def restore(self, model: FileAlgorithm) -> None:
        """Restore the state of a model's environment and of the global random generators, and begin new episodes."""
        env = model.env
        assert env is not None
        if env.num_envs != self.n_envs:
            raise ArgumentError(
                f"env has {env.num_envs} environments, but the run in {self.folder.parent} had {self.n_envs}: pass as "
                "many, or choose another folder for another run"
            )
        processes = model.processes
        if processes.size != len(self.random_states):
            raise ArgumentError(
                f"the run had {len(self.random_states)} processes and cannot be resumed exactly with {processes.size}; "
                f"load({str(self.folder / MODEL)!r}) continues training without that guarantee"
            )
        state.restore_normalizations(env, self.normalizations)
        model.statistics.agree(env)
        state.set_random_state(self.random_states[processes.rank])
        state.begin_episodes(model, self.seed, processes.rank)

    def check_arguments(self, given: FileAlgorithm, resumed: FileAlgorithm) -> None:
        """Check that a model was created with the arguments of the run, as it began or as it is when resumed."""
        now = _describe_all(get_arguments(resumed))
        for name, description in _describe_all(get_arguments(given)).items():
            if description not in (self.arguments[name], now[name]):
                raise ArgumentError(
                    f"{name}={_get_argument(given, name)!r}, but the run in {self.folder.parent} has "
                    f"{self.arguments[name]}. Choose another folder for this run, or pass the arguments of the run in "
                    "that folder"
                )

    def restore_callback(self, callback: BaseCallback, rank: int) -> None:
        """Restore the values that were recorded but not yet written to the log, and the state of the callbacks."""
        for values, saved in zip(_get_records(callback.logger), self.logged, strict=True):
            values.clear()
            values.update(saved)
        state.restore_memories(callback, self.memories[rank])
        state.seed_evaluations(callback, self.seed, self.num_timesteps)


def check_comparable(model: FileAlgorithm, names: Iterable[str]) -> None:
    """Check that a model keeps arguments with these names, so that those of a run can be compared with them.

    :raises ArgumentError: if it does not keep one
    """
    for name in names:
        if name not in MAY_DIFFER and not hasattr(model, ATTRIBUTES.get(name, name)):
            raise ArgumentError(
                f"resume_or_start cannot tell whether a run that it resumes has the same {name}, because "
                f"{type(model).__name__} keeps no attribute of this name: set self.{name} in its constructor"
            )


def _get_argument(model: FileAlgorithm, name: str) -> object:
    return getattr(model, ATTRIBUTES.get(name, name), None)


def get_arguments(model: FileAlgorithm) -> dict[str, object]:
    """Get the arguments of a model's constructors that affect the results of a run, by name."""
    return {name: _get_argument(model, name) for name in list_arguments(type(model)) if name not in MAY_DIFFER}


def _describe_all(arguments: Mapping[str, object]) -> dict[str, str]:
    return {name: describe(value) for name, value in arguments.items()}


def _read_file(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        fault = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise DamagedFileError(str(folder), name, fault) from error


def _get_records(logger: Logger) -> list[Values]:
    return [logger.name_to_value, logger.name_to_count, logger.name_to_excluded]


def _get_plain_records(logger: Logger) -> list[Values]:
    """Get the recorded values, except those without a plain form, such as figures."""
    keys = [key for key, value in logger.name_to_value.items() if plain.is_plain(value)]
    return [{key: values[key] for key in keys if key in values} for values in _get_records(logger)]


def _name_normalizations(number: int) -> list[str]:
    # SB3 reads the first file, which belongs to the outermost wrapper.
    return [f"vecnormalize_{i}.pkl" if i > 0 else "vecnormalize.pkl" for i in range(number)]


def _name_step(step: int) -> str:
    return f"step_{step:09d}"


def list_steps(folder: Path) -> dict[int, Path]:
    """List everything in a folder that has the name of a checkpoint, by step, newest first."""
    steps = {path: path.name.removeprefix("step_") for path in folder.glob(STEP_FOLDERS)}
    found = {int(step): path for path, step in steps.items() if step.isdecimal() and path.name == _name_step(int(step))}
    return dict(sorted(found.items(), reverse=True))


def has_only_ours(path: Path) -> bool:
    """Whether a path is a checkpoint, which may be damaged, without files of the user's."""
    names = os.listdir(path) if path.is_dir() else ["not a folder"]
    is_checkpoint = not names or HASHES in names or STATE in names
    return is_checkpoint and {MODEL, STATE, HASHES, *_name_normalizations(len(names))}.issuperset(names)


def is_replaceable(path: Path) -> bool:
    """Whether a path is a damaged checkpoint, without files of the user's."""
    try:
        Checkpoint.read(path)
    except DamagedFileError:
        return has_only_ours(path)
    return False


def check_folder(folder: Path, reached: int) -> None:
    """Check that a run replaces nothing but damaged checkpoints of its own if it writes checkpoints to a folder.

    :param reached: the step of the last checkpoint of this run in the folder; -1 if there is none
    """
    for step, path in list_steps(folder).items():
        if step > reached and (reached < 0 or not is_replaceable(path)):
            whose = "of another run" if reached < 0 else "beyond the checkpoint that this run continues from"
            raise ArgumentError(
                f"path={str(folder)!r} contains {path.name} {whose}. Choose another folder, or continue that run with "
                "resume()"
            )


def remove_older(checkpoint: Checkpoint, keep_last: int) -> None:
    """Keep the last ``keep_last`` checkpoints up to and including the given one, and remove older ones."""
    steps = list_steps(checkpoint.folder.parent).items()
    older = [path for step, path in steps if step < checkpoint.num_timesteps]
    for path in filter(has_only_ours, older[keep_last - 1 :]):
        remove_folder(path)


def find_checkpoint(path: Path) -> Checkpoint:
    """Find the checkpoint at a path, or the newest undamaged one in that folder, and warn of newer damaged ones."""
    path = path.resolve()
    if (path / HASHES).exists() or path in list_steps(path.parent).values():
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
