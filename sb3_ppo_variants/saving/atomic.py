"""Atomic writes: whatever happens, the old content or the new one is there, whole.

The new content goes to a temporary name in the same folder, is flushed to the disk, and is then renamed in one step.
"""

import errno
import glob
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# A temporary file that has not been written to for this long is left over from a process that was killed.
LEFT_OVER_AFTER_SECONDS = 3600
# Names end at 255 bytes, on some file systems at 143, and that of a temporary file is longer than its target's.
LONGEST_STEM = 100
# What a file system says that cannot force a file, or the names in a folder, to the disk.
NOT_FORCED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EPERM, errno.EBADF)
# What keeps a file from being replaced, though not from being written to: its folder, or a mount of the file itself.
NOT_REPLACED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ENAMETOOLONG)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in a folder that exists, or make it, with the links and permissions of ``open(path, "wb")``.

    A file that can be written to but not replaced, such as one in a folder that is not writable, is written to in
    place, with a warning: a crash meanwhile would leave a part of it.

    :raises OSError: if it cannot be written; the old file is then unchanged, unless it was written to in place
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(content)  # A device or a pipe, which has no content to lose.
        return
    try:
        _replace(target, content)
    except OSError as error:
        if error.errno not in NOT_REPLACED or not target.is_file():
            raise
        target.open("r+b").close()  # Raises, before anything is changed, where it cannot be written to.
        warnings.warn(
            f"{target} cannot be replaced ({error.strerror}). It is overwritten in place, where a crash damages it."
        )
        target.write_bytes(content)
        _sync(target)


def _replace(target: Path, content: bytes) -> None:
    _remove_left_over(target)
    temporary = _temporary(target)
    try:
        temporary.write_bytes(content)
        _sync(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(PermissionError):  # Where it cannot have been made.
            temporary.unlink(missing_ok=True)
        raise
    _sync(target.parent)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder, which replaces the target with all its files at the end, or not at all.

    :raises OSError: if it cannot be written; the old folder is then unchanged
    """
    _remove_left_over(target)
    temporary = _temporary(target)
    temporary.mkdir()
    try:
        yield temporary
        for path in [*temporary.iterdir(), temporary]:
            _sync(path)
        remove_folder(target)
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary)
        raise
    _sync(target.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder, if it exists, so that no part of it is ever there under its name."""
    removed = _temporary(folder)
    with suppress(FileNotFoundError):
        os.rename(folder, removed)
        shutil.rmtree(removed)


def _temporary(target: Path) -> Path:
    # Not from the global random generators, which a run may depend on.
    return target.with_name(f".{_stem(target)}.{secrets.token_hex(8)}.tmp")


def _stem(target: Path) -> str:
    return os.fsencode(target.name)[:LONGEST_STEM].decode(errors="ignore")


def _remove_left_over(target: Path) -> None:
    for name in target.parent.glob(f".{glob.escape(_stem(target))}.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - name.stat().st_mtime > LEFT_OVER_AFTER_SECONDS:
                shutil.rmtree(name) if name.is_dir() else name.unlink()


def _sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk, where the system can."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot do so with folders, and need not.
    try:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NOT_FORCED:
            raise
