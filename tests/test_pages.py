"""Everything that the pages name exists: modules and objects, files, members of classes, and what is in a file."""

import re
from collections import Counter
from importlib import import_module
from inspect import getdoc, signature
from pathlib import Path
from pkgutil import resolve_name

import pytest
import stable_baselines3

import sb3_ppo_variants

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*(DOCS / "objectives").glob("*.md"), DOCS / "paper_to_code.md", DOCS / "details.md"])
# Pages about the code itself, which name files and members of classes too.
INTERNALS = [
    *PAGES,
    *sorted((DOCS / "howto").glob("*.md")),
    *(DOCS / f"{n}.md" for n in ("architecture", "trust", "native", "upstream")),
]
PACKAGE = Path(sb3_ppo_variants.__file__).parent
# Where SB3's files are.
INSTALLED = Path(stable_baselines3.__file__).parent.parent
SOURCES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("sb3_ppo_variants", "benchmarks", "docs", "examples", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".hpp", ".cpp")
]
# Files that a how-to tells its readers to write.
THEIRS = ["mine.py"]
FILE = r"`([\w/.-]+\.(?:py|hpp|cpp))`"
PARTS = {path.stem for path in PACKAGE.iterdir()} - {"__init__", "__pycache__"}


def names(text: str) -> set[str]:
    """Return the dotted names of code here and in SB3, where the package's own name may be omitted."""
    found = set(re.findall(r"`([a-zA-Z_]\w*(?:\.\w+)+)`", text))
    found = {name for name in found if not name.endswith((".py", ".hpp", ".json"))}
    short = {f"sb3_ppo_variants.{name}" for name in found if name.split(".")[0] in PARTS}
    roots = ("sb3_ppo_variants", "stable_baselines3", "benchmarks")
    return short | {name for name in found if name.split(".")[0] in roots}


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


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def files_called(name: str) -> list[str]:
    """List the files with this name, in any folder."""
    return [path for path in SOURCES if f"/{path}".endswith(f"/{name}")]


def test_the_architecture_names_code() -> None:
    text = prose(DOCS / "architecture.md")
    assert len(re.findall(FILE, text)) > 50 and len(re.findall(r"`[A-Z]\w*\.\w+", text)) > 10


@pytest.mark.parametrize("page", INTERNALS, ids=lambda page: page.stem)
def test_code_that_is_named_exists(page: Path) -> None:
    assert [name for name in sorted(names(page.read_text())) if not exists(name)] == []


def test_every_guarantee_says_how_to_check_it() -> None:
    _, *sections = re.split(r"^## ", (DOCS / "trust.md").read_text(), flags=re.M)
    commands = [re.search(r"^\*\*Check it:\*\* `(.*?)`", section, re.M) for section in sections]
    assert len(commands) > 10
    for section, command in zip(sections, commands, strict=True):
        assert command, section.partition("\n")[0]
        files = re.findall(r"tests/[\w/]+\.py", command[1])
        assert files and [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("name", ["PPOClip", "PPOAdaptiveKL", "PPOFixedKL", "PPOUnclipped", "PPOCustom"])
def test_the_reference_has_each_argument_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS)
    algorithm, base = getattr(sb3_ppo_variants, name), resolve_name("sb3_ppo_variants.ppo:PPOBase")
    rows: Counter[tuple[str, ...]] = Counter()
    for part in (base, algorithm):
        lines = (getdoc(part) or "").split("\n")
        import_module("signatures").put_tables(None, "class", name, part, None, lines)
        assert not [line for line in lines if ":param" in line]
        rows += Counter(re.findall(r"- ``(\w+)``\n +- ``.+``\n +- (.*)\n +- .", "\n".join(lines)))
    given = signature(algorithm).parameters.values()
    assert rows == {(each.name, "" if each.default is each.empty else f"``{each.default!r}``"): 1 for each in given}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path) -> None:
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
        exec(code, {})
