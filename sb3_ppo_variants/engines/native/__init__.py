"""Small networks and the first layers of large ones, computed by a C++ library that is built with the package."""

import hashlib
import re
from pathlib import Path


def digest_interface(folder: Path) -> str:
    """Compute a digest of ``interface.hpp`` in a folder, whatever its comments say.

    ``setup.py`` builds it into the library. It runs this file before the package's dependencies are installed.
    """
    text = (folder / "interface.hpp").read_text(encoding="utf-8")
    return hashlib.sha256("".join(re.sub("//.*", "", text).split()).encode()).hexdigest()[:16]
