"""Hashes of the files in a folder, which reveal any damage, in the format of ``sha256sum --check``."""

import hashlib
from pathlib import Path

from sb3_ppo_variants.errors import DamagedFileError

HASHES = "SHA256SUMS"


def write_hashes(folder: Path) -> None:
    """Write the hashes of all files in a folder."""
    files = sorted(folder.iterdir())
    (folder / HASHES).write_text("".join(f"{sha256(file.read_bytes())}  {file.name}\n" for file in files))


def read_hashed(folder: Path) -> dict[str, bytes]:
    """Read the contents of all files that were hashed.

    :raises DamagedFileError: if a file is missing or differs from what was hashed
    """
    contents = {}
    for line in _read(folder, HASHES).decode(errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        contents[name] = _read(folder, name)
        if sha256(contents[name]) != expected:
            raise DamagedFileError(str(folder), name, "is not what was saved")
    return contents


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except (OSError, ValueError) as error:  # A damaged name may not be a valid file name.
        fault = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise DamagedFileError(str(folder), name, fault) from error


def sha256(content: bytes) -> str:
    """Return the SHA-256 hash of a file's content, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
