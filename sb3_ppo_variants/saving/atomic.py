"""Atomic writes: whatever happens, either the complete old content or the complete new content is there.

The new content is written under a temporary name in the same folder, flushed to disk, and then renamed in one step. A
process that is killed meanwhile leaves the temporary file, which ends in ``.tmp``.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Create or replace a file in an existing folder, following links and keeping the permissions of the old file.

    :raises OSError: if the file cannot be written; the old file is then unchanged
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(content)  # A device or a pipe has no content to lose.
        return
    if target.is_file():
        target.open("r+b").close()  # Raises if the file is protected, which would not keep it from being replaced.
    with replacing(target) as temporary:
        temporary.write_bytes(content)
        if target.is_file():
            shutil.copymode(target, temporary)


def remove_folder(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that it is never seen half-removed under its own name."""
    removed = _choose_temporary(folder)
    os.rename(folder, removed)
    shutil.rmtree(removed)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path. The file or folder that is there on exit replaces the target, completely or not at all.

    :raises OSError: if it cannot be written; the target is then unchanged
    """
    temporary = _choose_temporary(target)
    try:
        yield temporary
        for path in [*temporary.glob("*"), temporary]:
            _sync(path)
        if target.is_dir():
            remove_folder(target)
        os.replace(temporary, target)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
        raise
    _sync(target.parent)


def _choose_temporary(target: Path) -> Path:
    # The global random generators are left alone, because a run may depend on their state.
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    if not path.is_dir():
        with path.open("r+b") as file:
            os.fsync(file.fileno())
        return
    with suppress(OSError):  # Windows and some network file systems cannot flush folders.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
