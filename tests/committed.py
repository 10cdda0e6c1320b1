"""Reads the pages about committed results."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The source distribution is without them.
HAS_PICTURES = any((ROOT / "docs").rglob("*.png"))


def section(title: str, page: Path = ROOT / "docs" / "results" / "index.md") -> str:
    """Return a section of a page, with each paragraph and each row on one line."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(\n## |\Z)", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return re.sub(r"(?<=[^|\n])\n(?=[^|\n])", " ", found[1])
