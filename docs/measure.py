"""Measures the built site in Chromium without a window, and lists tables, code and formulas that are cut off.

``make docs-look`` builds the site and runs this. Chromium loads each page in a frame as wide as a screen, and a script
compares the width of what the page and each table or block of code contain with the width that is visible. Of a formula
that is not drawn, nothing is visible.
"""

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import NamedTuple

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (1400, 400)
# Pages of a screen of their own, which Sphinx generates.
SKIPPED = {"genindex.html", "search.html"}
MEASURE = """
<body><script>
const pages = PAGES, found = [];
async function measure(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `border: 0; width: ${width}px; height: 900px`;
  document.body.append(frame);
  await new Promise((resolve) => { frame.onload = resolve; frame.src = "/" + page; });
  await frame.contentWindow.MathJax?.startup.promise;
  const undrawn = ".math:not(:has(mjx-container)), .math:has(merror)";
  const boxes = `.content, article .table-wrapper, article pre, ${undrawn}`;
  for (const box of frame.contentDocument.querySelectorAll(boxes)) {
    const hidden = box.scrollWidth - (box.matches(undrawn) ? 0 : box.clientWidth);
    if (hidden > 1) found.push([page, width, box.innerText.trim().slice(0, 60), hidden]);
  }
  frame.remove();
}
(async () => {
  for (const width of WIDTHS) for (const page of pages) await measure(page, width);
  document.body.innerHTML = "";
  document.body.append(JSON.stringify(found));
  document.title = "done";
})();
</script></body>
"""


class Cut(NamedTuple):
    """A part of a page of which some pixels are hidden on the right."""

    page: str
    width: int
    begins: str
    hidden: int


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def find_browser() -> str | None:
    """Return the path of a Chromium, or ``None``."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def measure(site: Path, browser: str) -> Iterator[Cut]:
    """Yield what is cut off on the pages of a built site."""
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts)
    pages = [page for page in pages if page not in SKIPPED]
    script = MEASURE.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS))
    harness = site / "_measure.html"
    harness.write_text(script)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with TemporaryDirectory() as profile:
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
            address = f"http://127.0.0.1:{server.server_port}/{harness.name}"
            options = ["--window-size=1400,900", "--timeout=600000", "--virtual-time-budget=600000", "--dump-dom"]
            made = subprocess.run([*command, *options, address], capture_output=True, text=True, check=True)
    finally:
        server.shutdown()
        harness.unlink()
    (found,) = re.findall(r"<body>(\[.*\])</body>", made.stdout, re.DOTALL)
    yield from (Cut(*each) for each in json.loads(html.unescape(found)))


if __name__ == "__main__":
    path = find_browser()
    if path is None:
        sys.exit(f"install one of {', '.join(BROWSERS)}")
    cuts = [*measure(Path(sys.argv[1]), path)]
    for cut in cuts:
        print(f"{cut.page} at {cut.width} pixels hides {cut.hidden}: {cut.begins!r}")
    sys.exit(bool(cuts))
