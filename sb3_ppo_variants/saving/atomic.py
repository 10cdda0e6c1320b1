"""Atomic writes: whatever happens, either the complete old content or the complete new content is there.

The new content is written under a temporary name in the same folder, flushed to disk, and then renamed in one step. A
process that is killed meanwhile leaves what it wrote under that name, which ends in ``.tmp``.
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
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(content)  # A device or a pipe has no content to lose.
        return
    with replacing(target) as temporary:
        temporary.write_bytes(content)
        if target.is_file():
            shutil.copymode(target, temporary)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path. The file or folder that is there on exit gets the name of the target, or nothing changes.

    :raises OSError: if it cannot be written, or the target is a folder with something in it
    """
    # The global random generators are left alone, because a run may depend on their state.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        for path in [*temporary.glob("*"), temporary]:
            _sync(path)
        os.replace(temporary, target)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
        raise
    _sync(target.parent)


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    if path.is_file():
        with path.open("r+b") as file:
            os.fsync(file.fileno())
        return
    with suppress(OSError):  # Windows and some network file systems cannot flush folders.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
