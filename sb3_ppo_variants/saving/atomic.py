"""Atomic writes: whatever happens, either the complete old content or the complete new content is there.

The new content is written under a temporary name in the same folder, flushed to disk, and then renamed in one step.
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
# File names are limited to 255 bytes, or 143 on some file systems, and a temporary name is longer than its target's.
LONGEST_STEM = 100
# The random part of a temporary name, which no file of the user's has.
RANDOM_BYTES = 8
# Errors of file systems that cannot flush a file, or the names in a folder, to disk.
NOT_FORCED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EPERM, errno.EBADF)
# Errors when a file cannot be replaced, because of its folder or because it is itself a mount point. It may still be
# writable in place.
NOT_REPLACED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ENAMETOOLONG)


def write_atomically(path: Path, content: bytes) -> None:
    """Create or replace a file in an existing folder, following links and keeping permissions as ``open(path, "wb")``.

    A file that is writable but cannot be replaced, such as one in a read-only folder, is overwritten in place, with a
    warning: a crash during the write would leave an incomplete file.

    :raises OSError: if the file cannot be written; the old file is then unchanged, unless it was overwritten in place
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(content)  # A device or a pipe has no content to lose.
        return
    if target.is_file():
        target.open("r+b").close()  # Raises if the file is protected, which would not keep it from being replaced.
    try:
        with replacing(target) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        if error.errno not in NOT_REPLACED or not target.is_file():
            raise
        warnings.warn(
            f"{target} cannot be replaced ({error.strerror}). It is overwritten in place, where a crash damages it."
        )
        target.write_bytes(content)
        _sync(target)


def remove_folder(folder: Path) -> None:
    """Remove a folder if it exists. It is renamed first, so that it is never seen half-removed under its own name."""
    removed = _choose_temporary(folder)
    with suppress(FileNotFoundError):
        os.rename(folder, removed)
        _remove(removed)


def remove_left_over(folder: Path, names: str) -> None:
    """Remove temporary files and folders of processes that were killed.

    :param folder: where they are
    :param names: a pattern for the names of what they replaced or removed
    """
    for path in folder.glob(f".{names}.{2 * RANDOM_BYTES * '[0-9a-f]'}.tmp"):
        with suppress(OSError):  # Another process has removed it, or it belongs to another user.
            if time.time() - path.stat().st_mtime > LEFT_OVER_AFTER_SECONDS:
                _remove(path)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path. The file or folder that is there on exit replaces the target, completely or not at all.

    :raises OSError: if it cannot be written; the target is then unchanged
    """
    remove_left_over(target.parent, glob.escape(_shorten_name(target)))
    temporary = _choose_temporary(target)
    try:
        yield temporary
        for path in [*temporary.glob("*"), temporary]:
            _sync(path)
        if target.is_dir():
            remove_folder(target)
        elif target.exists():
            _copy_owner(target, temporary)
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError, PermissionError):  # Without permission for the folder, nothing was created.
            _remove(temporary)
        raise
    _sync(target.parent)


def _copy_owner(source: Path, target: Path) -> None:
    """Give a file the owner and the group of another one, as far as the system and the user's permissions allow."""
    status = source.stat()
    if hasattr(os, "chown"):
        for owner, group in ((-1, status.st_gid), (status.st_uid, -1)):
            with suppress(PermissionError):
                os.chown(target, owner, group)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _choose_temporary(target: Path) -> Path:
    # The global random generators are left alone, because a run may depend on their state.
    return target.with_name(f".{_shorten_name(target)}.{secrets.token_hex(RANDOM_BYTES)}.tmp")


def _shorten_name(target: Path) -> str:
    return os.fsencode(target.name)[:LONGEST_STEM].decode(errors="ignore")


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk, if the system supports it."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot flush folders, and does not need to.
    try:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NOT_FORCED:
            raise
