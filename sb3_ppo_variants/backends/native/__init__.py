"""Small networks and the first layers of large ones, computed by a C++ library that is built with the package."""

import hashlib
from pathlib import Path


def digest_sources(folder: Path) -> str:
    """Compute a digest of the C++ files in a folder.

    ``setup.py`` builds it into the library. It runs this file before the package's dependencies are installed.
    """
    found = hashlib.sha256()
    for file in sorted(folder.glob("*.[ch]pp")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()[:16]
