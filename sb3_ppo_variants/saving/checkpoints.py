"""The checkpoints in a folder."""

import warnings
from pathlib import Path

from sb3_ppo_variants.errors import DamagedFileError
from sb3_ppo_variants.saving.atomic import remove_folder
from sb3_ppo_variants.saving.checkpoint import Checkpoint
from sb3_ppo_variants.saving.hashes import HASHES


def folders_by_step(folder: Path) -> dict[int, Path]:
    """The folders of checkpoints by their steps, newest first, whether whole or not."""
    steps = {path: path.name.removeprefix("step_") for path in folder.glob("step_*")}
    found = {int(step): path for path, step in steps.items() if step.isdecimal()}
    return dict(sorted(found.items(), reverse=True))


def remove_older(checkpoint: Checkpoint, keep_last: int) -> None:
    """Keep the last checkpoints up to the given one, which counts too, and remove older ones."""
    steps = folders_by_step(checkpoint.folder.parent).items()
    for path in [path for step, path in steps if step < checkpoint.num_timesteps][keep_last - 1 :]:
        remove_folder(path)


def is_whole(folder: Path) -> bool:
    """Whether no file of a checkpoint is missing or damaged."""
    try:
        Checkpoint.read(folder)
    except DamagedFileError:
        return False
    return True


def find_checkpoint(path: Path) -> Checkpoint:
    """The newest whole checkpoint in a folder, with a warning for each newer one that is damaged.

    :param path: a folder with checkpoints, or one of them
    :raises FileNotFoundError: if there is no checkpoint
    :raises DamagedFileError: if all are damaged
    """
    path = path.resolve()
    if (path / HASHES).exists():
        return Checkpoint.read(path)
    damaged: list[str] = []
    for folder in folders_by_step(path).values():
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
