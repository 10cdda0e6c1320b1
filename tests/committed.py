"""Reads the pages about committed results."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The source distribution is without the pictures, the records of runs and the trained agents.
HAS_PICTURES = any((ROOT / "docs").rglob("*.png"))
needs_records = pytest.mark.skipif(
    not any((ROOT / "results").glob("*.jsonl.gz")), reason="the records are in the repository only"
)


def section(title: str, page: Path = ROOT / "docs" / "results" / "index.md") -> str:
    """Return a section of a page, with each paragraph and each row on one line."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(\n## |\Z)", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return re.sub(r"(?<=[^|\n])\n(?=[^|\n])", " ", found[1])
