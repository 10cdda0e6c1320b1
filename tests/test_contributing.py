"""The guide for contributors describes the repository as it is."""

import re
from pathlib import Path

from committed import section

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "CONTRIBUTING.md"
ROWS = re.compile(r"^\| (.*) \|$", re.M)
TARGETS = dict(re.findall(r"^([a-z0-9-]+):.*## (.*)$", (ROOT / "Makefile").read_text(), re.M))


def rows(title: str) -> list[list[str]]:
    """Return the rows of the first table of a section, without its header."""
    found = [[cell.strip() for cell in row.split("|")] for row in ROWS.findall(section(title, GUIDE))]
    return [row for row in found if row[0].startswith("`")]


def test_commands_exist_and_take_as_long_as_their_help_says() -> None:
    found = rows("Set up")
    assert len(found) > 5
    for command, _, takes in found:
        help_text = TARGETS[command.strip("`").removeprefix("make ")]
        assert takes in help_text


def test_links_lead_to_files() -> None:
    text = GUIDE.read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#([^)]*))?\)", text)
    assert len(targets) > 8
    for file, anchor in targets:
        titles = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.M)
        anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not anchor or anchor in anchors, anchor


def test_reports_of_bugs_ask_for_the_system() -> None:
    template = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
    assert "get_system_info()" in template and re.search(r"id: system.*?required: true", template, re.S)
