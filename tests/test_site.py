"""The built site, as Chromium shows it."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from javascript import evaluate

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_no_table_code_or_formula_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    (tmp_path / "faq.html").write_text("<article><div class=math>without MathJax</div></article>")
    assert {cut.page for cut in look.measure(tmp_path, browser)} == {"faq.html", "index.html"}


def test_excerpts_have_no_tex(tmp_path: Path) -> None:
    template = (ROOT / "docs" / "_templates" / "search.html").read_text()
    (tmp_path / "script.js").write_text(template.partition("<script>")[2].partition("</script>")[0])
    (tmp_path / "search.js").write_text("const Search = { htmlToText: (html, anchor) => html + anchor };")
    block = '<div class="math-wrapper"><div class="math notranslate">\\[\nx\n\\]</div></div>'
    page = f'<p>the <span class="math notranslate">\\(r \\hat A\\)</span> of <span>each</span></p>{block}'
    found = evaluate(f"Search.htmlToText(`{page}`, `#it`)", tmp_path / "search.js", tmp_path / "script.js")
    assert found == '<p>the … of <span>each</span></p><div class="math-wrapper">…</div>#it'
