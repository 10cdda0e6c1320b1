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
def test_a_committed_report_is_what_its_records_give(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["reports", "--only", name, "--out", str(tmp_path)]) == 0
    made, committed = tmp_path / name, ROOT / "docs" / "reports" / name
    for file in ("report.md", "scores.csv"):
        assert (made / file).read_text() == (committed / file).read_text()
    pictures = {file.name for file in (committed / "pictures").glob("*.png")}
    assert not HAS_PICTURES or pictures == {file.name for file in (made / "pictures").glob("*.png")}
