"""The built site, as Chromium shows it."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_no_table_and_no_code_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    look = import_module("measure")
    browser = look.find_browser()
    if browser is None:
        pytest.skip("Chromium is not installed")
    build = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(ROOT / "docs"), str(tmp_path)]
    subprocess.run(build, check=True)
    assert [*look.measure(tmp_path, browser)] == []
    # A table of long words cannot fit a phone.
    (tmp_path / "index.html").write_text(f"<article><pre>{'wide' * 100}</pre></article>")
    assert {cut.page for cut in look.measure(tmp_path, browser)} == {"index.html"}
