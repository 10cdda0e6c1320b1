"""Everything that the pages name exists: modules and objects, files, members of classes, and what is in a file."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import stable_baselines3
from committed import HAS_PICTURES

import sb3_ppo_variants

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*(DOCS / "objectives").glob("*.md"), DOCS / "paper_to_code.md", DOCS / "details.md"])
# Pages about the code itself, which name files and members of classes too.
INTERNALS = [
    *PAGES,
    *sorted((DOCS / "howto").glob("*.md")),
    *(DOCS / f"{n}.md" for n in ("architecture", "trust", "testing", "native", "upstream")),
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


def missing_files(text: str) -> list[str]:
    return [
        name
        for name in re.findall(FILE, text)
        if name not in THEIRS and not files_called(name) and not (INSTALLED / name).exists()
    ]


def missing_from_files(text: str) -> list[str]:
    """List the names that a text says are in a file, as "`name` in `file`" or "`name` (`file`)", and that are not."""
    return [
        f"{name} in {file}"
        for name, file in re.findall(rf"`([\w.]+)(?:\([^`]*\))?`(?:\s+in\s+|\s+\(){FILE}", text)
        if files_called(file)
        and not any(re.search(rf"\b{name.split('.')[-1]}\b", (ROOT / path).read_text()) for path in files_called(file))
    ]


@cache
def members() -> dict[str, tuple[set[str], set[str]]]:
    """Return the members and the base classes of each class of the package."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                own, bases = found.setdefault(node.name, (set(), set()))
                bases |= {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef):
                        own.add(inner.name)
                    elif isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        own.add(inner.id if isinstance(inner, ast.Name) else inner.attr)
    return found


def has_member(name: str, member: str) -> bool:
    own, bases = members()[name]
    return member in own or any(base in members() and has_member(base, member) for base in bases)


def missing_members(text: str) -> list[str]:
    named = re.findall(r"`([A-Z]\w*)\.(\w+)(?:\([^`]*\))?`", text)
    return [f"{name}.{member}" for name, member in named if name in members() and not has_member(name, member)]


@pytest.mark.parametrize("page", INTERNALS, ids=lambda page: page.stem)
def test_files_and_members_of_classes_that_are_named_exist(page: Path) -> None:
    text = prose(page)
    assert missing_files(text) == missing_from_files(text) == missing_members(text) == []


def test_what_does_not_exist_is_found() -> None:
    text = (
        "`envs/steam.py`, `kl.py`, `PolicyKind.has_distribution`, `PolicyKind.has_steam`, `Snapshot.__exit__()`, "
        "`PPOClip.save(path)`, `PPOClip._plan`, `Descent` in `update.py`, `steam(plan)` (`update.py`)"
    )
    assert missing_files(text) == ["envs/steam.py"]
    assert missing_from_files(text) == ["steam in update.py"]
    assert missing_members(text) == ["PolicyKind.has_steam"]


def test_the_architecture_names_code() -> None:
    text = prose(DOCS / "architecture.md")
    assert len(re.findall(FILE, text)) > 50 and len(re.findall(r"`[A-Z]\w*\.\w+", text)) > 10


@pytest.mark.parametrize("page", INTERNALS, ids=lambda page: page.stem)
def test_code_that_is_named_exists(page: Path) -> None:
    assert [name for name in sorted(names(page.read_text())) if not exists(name)] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    assert exists("sb3_ppo_variants.update.Descent") and exists("sb3_ppo_variants.kl")
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


def lines_shown(page: Path, text: str) -> dict[str, list[str]]:
    """Return the lines that each literalinclude of a page shows, by its text: none where Sphinx does not find them."""
    found = {}
    for whole, file, options in re.findall(r"^(```\{literalinclude\} (\S+)\n((?::.*\n)*)```)", text, re.M):
        given = dict(re.findall(r"^:([\w-]+): ?(.*)$", options, re.M))
        code = (page.parent / file).read_text()
        lines = code.splitlines()
        if "pyobject" in given:
            nodes: list[ast.AST] = [ast.parse(code)]
            for name in given["pyobject"].split("."):
                nodes = [
                    each for node in nodes for each in ast.iter_child_nodes(node) if getattr(each, "name", "") == name
                ]
            lines = [line for node in nodes for line in (ast.get_source_segment(code, node) or "").splitlines()]
        for name, begins in (("start-at", 0), ("start-after", 1)):
            if pattern := given.get(name, "").strip('"'):
                lines = next((lines[i + begins :] for i, line in enumerate(lines) if pattern in line), [])
        for name, ends in (("end-at", 1), ("end-before", 0)):
            if pattern := given.get(name, "").strip('"'):
                lines = next((lines[: i + ends] for i, line in enumerate(lines) if pattern in line), [])
        found[whole] = lines
    return found


def test_code_that_is_shown_is_found() -> None:
    pages = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
    shown = {
        f"{page.name}: {whole}": lines for page in pages for whole, lines in lines_shown(page, page.read_text()).items()
    }
    assert len(shown) > 20 and [whole for whole, lines in shown.items() if not lines] == []


def test_code_that_is_not_there_is_not_found() -> None:
    include = "```{literalinclude} ../sb3_ppo_variants/objectives/surrogates.py\n:pyobject: Clipped.loss\n"
    shown = [f"{include}:start-at: unclipped =\n:end-at: unclipped =\n```", f"{include}:start-at: nothing =\n```"]
    known, unknown = lines_shown(DOCS / "page.md", "\n".join(shown)).values()
    assert [line.strip() for line in known] == ["unclipped = batch.advantages * batch.ratio"] and unknown == []


def test_every_guarantee_says_how_to_check_it() -> None:
    _, *sections = re.split(r"^## ", (DOCS / "trust.md").read_text(), flags=re.M)
    commands = [re.search(r"^\*\*Check it:\*\* `(.*?)`", section, re.M) for section in sections]
    assert len(commands) > 10
    for section, command in zip(sections, commands, strict=True):
        assert command, section.partition("\n")[0]
        files = re.findall(r"tests/[\w/]+\.py", command[1])
        assert files and [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path) -> None:
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
        exec(code, {})


def test_reports_of_files_name_a_folder() -> None:
    """Without ``--out``, ``report --from`` has no place to write to, and refuses."""
    commands: list[str] = []
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        commands += re.findall(r"`[^`]*\breport --from[^`]*`|^[^`\n]*\breport --from[^`\n]*$", text, re.MULTILINE)
    assert len(commands) > 10
    assert not [command for command in commands if "--out" not in command]
