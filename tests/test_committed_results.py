"""What is written of the committed records is what the command makes of them."""

import re
from pathlib import Path

import pytest

from sb3_ppo_variants.benchmark.__main__ import main

ROOT = Path(__file__).parent.parent
NAMES = ["table1-200k", "sb3-200k"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_committed_report_is_what_its_records_give(name: str, tmp_path: Path) -> None:
    assert main(["report", "--from", str(ROOT / "results" / f"{name}.jsonl.gz"), "--out", str(tmp_path)]) == 0
    for file in ("report.md", "scores.csv"):
        assert (tmp_path / file).read_text() == (ROOT / "docs" / name / file).read_text()
    pictures = {file.name for file in (ROOT / "docs" / name / "pictures").iterdir()}
    assert pictures == {file.name for file in (tmp_path / "pictures").iterdir()}


def test_the_readme_has_the_numbers_of_the_reports() -> None:
    section = re.search(r"### Table 1 of the paper\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.DOTALL)
    assert section
    intervals = re.findall(r"-?\d\.\d\d \(-?\d\.\d\d to -?\d\.\d\d\)", section[1])
    reports = "".join((ROOT / "docs" / name / "report.md").read_text() for name in NAMES)
    assert len(intervals) >= 7
    assert [interval for interval in intervals if interval not in reports] == []
