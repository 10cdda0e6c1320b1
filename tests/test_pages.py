"""Everything that the pages about the paper name exists."""

import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
from committed import HAS_PICTURES

import sb3_ppo_variants

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted([*(DOCS / "objectives").glob("*.md"), DOCS / "paper_to_code.md", DOCS / "details.md"])
PACKAGE = Path(sb3_ppo_variants.__file__).parent
PARTS = {path.stem for path in PACKAGE.iterdir()} - {"__init__", "__pycache__"}


def names(text: str) -> set[str]:
    """Return the dotted names of SB3's objects and this package's, where the package's own name may be omitted."""
    found = set(re.findall(r"`([a-zA-Z_]\w*(?:\.\w+)+)`", text))
    short = {f"sb3_ppo_variants.{name}" for name in found if name.split(".")[0] in PARTS}
    return short | {name for name in found if name.split(".")[0] in ("sb3_ppo_variants", "stable_baselines3")}


def exists(name: str) -> bool:
    """Check whether a name is that of a module, or of an object in the innermost module of its path."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            import_module(module)
            resolve_name(f"{module}:{'.'.join(parts[length:])}")
            return True
        except ModuleNotFoundError:
            continue
        except AttributeError:
            return False
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_that_is_named_exists(page: Path) -> None:
    assert [name for name in sorted(names(page.read_text())) if not exists(name)] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    assert exists("sb3_ppo_variants.updates.run.run_update") and exists("sb3_ppo_variants.kl")
    assert not exists("sb3_ppo_variants.kl.nothing") and not exists("sb3_ppo_variants.nothing")


def test_the_tables_name_code() -> None:
    assert len(names((DOCS / "paper_to_code.md").read_text())) > 25
    assert len(names((DOCS / "details.md").read_text())) > 25


def test_there_are_37_details() -> None:
    text = (DOCS / "details.md").read_text()
    sections = {title: re.findall(r"^\| (\d+) \|", text.partition(f"\n## {title}\n")[2].partition("\n## ")[0], re.M)
                for title in ("Core", "Atari", "Continuous actions", "LSTM", "MultiDiscrete")}  # fmt: skip
    counts = [13, 9, 9, 5, 1]
    assert list(sections.values()) == [[str(i) for i in range(1, count + 1)] for count in counts]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_and_pictures_that_are_shown_exist(page: Path) -> None:
    text = page.read_text()
    for file in re.findall(r"^```\{literalinclude\} (\S+)$|^!\[[^]]*\]\((\S+)\)$", text, re.M):
        file = "".join(file)
        assert (page.parent / file).is_file() or not (HAS_PICTURES or file.endswith((".py", ".hpp"))), file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path) -> None:
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
        exec(code, {})
