"""The sources of the library. ``setup.py`` runs this module too, so it imports nothing of the package."""

import hashlib
from pathlib import Path


def digest(folder: Path) -> str | None:
    """Return a digest of the C++ files in a folder, or ``None`` if it has none, as after installing a wheel."""
    found = hashlib.sha256()
    files = sorted(folder.glob("*.[ch]pp"))
    for file in files:
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()[:16] if files else None
