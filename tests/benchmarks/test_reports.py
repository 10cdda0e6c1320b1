"""The committed reports are what the committed records give, and pages quote their tables."""

from pathlib import Path

import pytest
from committed import HAS_PICTURES, ROOT, needs_records

from benchmarks.__main__ import main
from benchmarks.reports import BASELINES

pytestmark = needs_records


@pytest.mark.parametrize(
    "name", [name if name in ("masked", "hopper") else pytest.param(name, marks=pytest.mark.slow) for name in BASELINES]
)
def test_a_committed_report_is_what_records_give(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["reports", "--only", name, "--out", str(tmp_path)]) == 0
    made, committed = tmp_path / name, ROOT / "docs" / "reports" / name
    for file in ("report.md", "scores.csv"):
        assert (made / file).read_text() == (committed / file).read_text()
    there, drawn = ({file.name for file in (folder / "pictures").glob("*.png")} for folder in (committed, made))
    # Others were made of the same records, for a page.
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*/index.md"))
    assert not HAS_PICTURES or (drawn <= there and all(f"{name}/pictures/{file}" in pages for file in there - drawn))
