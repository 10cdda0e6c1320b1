"""Sphinx configuration of the documentation site, which ``make docs`` builds."""

import re
import sys
from html import escape
from importlib.resources import files
from pathlib import Path

from docutils.nodes import document, entry, row, table, tbody, thead
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

import explorer  # noqa: E402

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
    "signatures",
]
exclude_patterns = ["_build", "_generated", "notebooks"]

myst_enable_extensions = ["amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
# GitHub renders the same blocks.
myst_fence_as_directive = ["math"]
# Deep enough for the sections of all pages. Other pages link to them by their titles, as on GitHub.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True

# Formulas are drawn by MathJax: one script, a part of the site, so that browsers need no network or fonts.
MATHJAX = files("sphinx-mathjax-offline") / "static" / "mathjax" / "tex-svg.js"
mathjax_path = MATHJAX.name

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "sb3_ppo_variants"
html_static_path = ["_static", str(MATHJAX)]
templates_path = ["_templates"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": "https://github.com/sb3-ppo-variants/sb3_ppo_variants/",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_exclude = ".linenos, .gp, .go"

# `make docs-links` skips pages that will exist once the project is published, and sites that refuse robots.
linkcheck_ignore = [r"https://github\.com/sb3-ppo-variants/.*", r"https://colab\.research\.google\.com/.*"]
linkcheck_anchors = False


LINKS = re.compile(r"^\[[^]]*\]\(([^):]+)\)(, \[[^]]*\]\([^):]+\))*\.?\n", re.MULTILINE)


def leave_out_missing_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Remove the lines of a committed report that link to report files that are not committed."""
    folder = (DOCS / page).parent
    if page.endswith("/report"):
        source[0] = LINKS.sub(lambda found: found[0] if (folder / found[1]).exists() else "", source[0])


# In a long name, and not within a tag.
BREAKS = re.compile(r"(?<=[a-z_][._/=])(?=\w)(?![^<]*>)")
# Also in the name of a column.
BREAKS_IN_HEAD = re.compile(BREAKS.pattern + r"|(?<=[a-z])(?=[A-Z])(?![^<]*>)")


def name_columns(app: Sphinx, tree: document, page: str) -> None:
    """Give each cell the name of its column, which a phone shows beside it."""
    for each in tree.findall(table):
        names = [cell.astext() for head in each.findall(thead) for cell in head.findall(entry)]
        for line in (line for body in each.findall(tbody) for line in body.findall(row)):
            for name, cell in zip(names[1:], [*line.findall(entry)][1:], strict=False):
                cell["column"] = name


class Translator(HTML5Translator):
    """Writes the names of columns into the cells of tables, and lets lines break within long names there."""

    def depart_entry(self, node: entry) -> None:
        """End a cell."""
        breaks = BREAKS_IN_HEAD if isinstance(node.parent.parent, thead) else BREAKS
        self.body[self.cell :] = [breaks.sub("<wbr>", part) for part in self.body[self.cell :]]
        super().depart_entry(node)

    def visit_entry(self, node: entry) -> None:
        """Begin a cell."""
        super().visit_entry(node)
        if "column" in node:
            begin, _, rest = self.body[-1].partition(">")
            self.body[-1] = f'{begin} data-column="{escape(node["column"])}">{rest}'
        self.cell = len(self.body)


def write_records(app: Sphinx, error: Exception | None) -> None:
    """Write the data of the page "Explorer" into the site."""
    if error is None and app.builder.format == "html":
        explorer.write(Path(app.outdir) / "_static" / "records.js")


def setup(app: Sphinx) -> None:
    """Register the parts above; called by Sphinx."""
    app.set_translator("html", Translator)
    app.connect("doctree-resolved", name_columns)
    app.connect("source-read", leave_out_missing_files)
    app.connect("build-finished", write_records)
