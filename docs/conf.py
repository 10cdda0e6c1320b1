"""Sphinx's configuration of the documentation site: ``make docs`` builds it."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

import sb3_ppo_variants  # noqa: E402

project = "sb3_ppo_variants"
author = "The sb3_ppo_variants maintainers"
copyright = author
version = release = sb3_ppo_variants.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build", "_generated", "notebooks"]

myst_enable_extensions = ["amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_fence_as_directive = ["mermaid"]
# Deep enough for the sections of all pages, to which others link by their titles as they do on GitHub.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"
maximum_signature_line_length = 100

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "sb3_ppo_variants"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": "https://github.com/sb3-ppo-variants/sb3_ppo_variants/",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_exclude = ".linenos, .gp, .go"

# `make docs-links`: pages that exist only once the project is published, and sites that refuse robots.
linkcheck_ignore = [r"https://github\.com/sb3-ppo-variants/.*", r"https://colab\.research\.google\.com/.*"]
linkcheck_anchors = False


# Names of pages with a star, in a table of contents.
STARRED = re.compile(r"^([a-z_/]+\*)\n", re.MULTILINE)
LINKS = re.compile(r"^\[[^]]*\]\(([^):]+)\)(, \[[^]]*\]\([^):]+\))*\.?\n", re.MULTILINE)


def leave_out_missing_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Leave out lines of a committed report that link to a file of the report that is not committed."""
    folder = (DOCS / page).parent
    if page.endswith("/report"):
        source[0] = LINKS.sub(lambda found: found[0] if (folder / found[1]).exists() else "", source[0])


def leave_out_missing_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Leave out names with a star that match no page, of which Sphinx would warn."""
    source[0] = STARRED.sub(lambda found: found[0] if any(DOCS.glob(found[1])) else "", source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", leave_out_missing_files)
    app.connect("source-read", leave_out_missing_pages)
