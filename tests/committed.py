"""Reads committed results, and the pages about them."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # It needs SciPy, and not all that import this module do.
    from sb3_ppo_variants.compare.statistics import Differences

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


def better(differences: "Differences") -> set[tuple[str, str]]:
    """Return the pairs of which the first is better than the second beyond noise."""
    return {pair for pair, each in differences.items() if each.is_beyond_noise and each.estimate.value > 0}
