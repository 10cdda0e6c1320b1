"""The checkpoints in a folder."""

import warnings
from pathlib import Path

from sb3_ppo_variants.errors import DamagedFileError
from sb3_ppo_variants.saving.atomic import remove_folder
from sb3_ppo_variants.saving.checkpoint import Checkpoint
from sb3_ppo_variants.saving.hashes import HASHES


def folders_by_step(folder: Path) -> dict[int, Path]:
    """The folders of checkpoints by their steps, the newest first, whole or not."""
    found = {step: path for path in folder.glob("step_*") if (step := _step(path)) is not None}
    return dict(sorted(found.items(), reverse=True))


def _step(folder: Path) -> int | None:
    digits = folder.name.removeprefix("step_")
    return int(digits) if digits.isdecimal() else None


def remove_older(checkpoint: Checkpoint, keep_last: int) -> None:
    """Remove checkpoints older than one in the same folder, but for the newest of them.

    :param checkpoint: the newest checkpoint of a run
    :param keep_last: how many to keep, this one included
    """
    steps = folders_by_step(checkpoint.folder.parent).items()
    for path in [path for step, path in steps if step < checkpoint.num_timesteps][keep_last - 1 :]:
        remove_folder(path)


def is_whole(folder: Path) -> bool:
    """Whether all files of a checkpoint are what was written."""
    try:
        Checkpoint.read(folder)
    except DamagedFileError:
        return False
    return True


def find_checkpoint(path: Path) -> Checkpoint:
    """The newest checkpoint in a folder that is whole; each that is newer and is not is warned of.

    :param path: a folder with checkpoints, or one of them
    :raises FileNotFoundError: if there is none
    :raises DamagedFileError: if none is whole
    """
    path = path.resolve()
    if (path / HASHES).exists():
        return Checkpoint.read(path)
    folders = list(folders_by_step(path).values())
    if not folders:
        raise FileNotFoundError(f"There is no checkpoint in {path}")
    damaged = []
    for folder in folders:
        try:
            found = Checkpoint.read(folder)
        except DamagedFileError as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            warnings.warn(f"{message}; going back to {folder.name}")
        return found
    raise DamagedFileError(str(path), "every checkpoint", f"is damaged: {'; '.join(damaged)}")
