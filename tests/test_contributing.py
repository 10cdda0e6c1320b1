"""The guide for contributors describes the repository as it is."""

import ast
import re
from pathlib import Path

import pytest
from committed import section

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "CONTRIBUTING.md"
ROWS = re.compile(r"^\| (.*) \|$", re.M)
TARGETS = dict(re.findall(r"^([a-z0-9-]+):.*## (.*)$", (ROOT / "Makefile").read_text(), re.M))


def rows(title: str) -> list[list[str]]:
    """Return the rows of the first table of a section, without its header."""
    found = [[cell.strip() for cell in row.split("|")] for row in ROWS.findall(section(title, GUIDE))]
    return [row for row in found if row[0].startswith("`")]


def folders() -> dict[str, set[str]]:
    return {name.strip("`"): set(re.findall(r"`(\w+)`", imports)) for name, _, imports in rows("A map of the house")}


def imported(folder: Path) -> set[str]:
    """Return the top-level packages that the modules in a folder import."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("name", folders())
def test_folders_import_what_the_map_says(name: str) -> None:
    assert (imported(ROOT / name) & folders().keys()) - {name} == folders()[name]


def test_the_map_has_every_folder_with_code_or_records() -> None:
    tracked = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."}
    with_code = {name for name in tracked if any((ROOT / name).glob("*.py"))} - {"build"}
    assert with_code | {"results"} == folders().keys()


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
