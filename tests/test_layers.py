"""No part of the package imports from a higher layer or from its own layer, and no two things share a name."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import sb3_ppo_variants

ROOT = Path(sb3_ppo_variants.__file__).parent
# From bottom to top. The parts of a layer do not import each other.
LAYERS = [
    ["errors"],
    ["kl", "layout"],
    ["distributions"],
    ["hybrid"],
    ["arguments"],
    ["losses", "stops"],
    ["processes"],
    ["objectives", "guards"],
    ["envs"],
    ["rollouts", "saving"],
    ["policies"],
    ["updates"],
    ["backends"],
    ["base"],
    ["variants"],
    ["tasks", "evaluation"],
    ["recipes"],
    ["zoo", "compare"],
    ["__main__"],
]
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def level(part: str) -> int:
    (found,) = (i for i, names in enumerate(LAYERS) if part in names)
    return found


def imported(path: Path) -> set[str]:
    """Return the parts of the package that a file imports."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        parts |= {name.split(".")[1] for name in names if name.split(".")[0] == ROOT.name}
    return parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downwards(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for part in imported(path) - {own}:
        assert level(part) < level(own), f"{own} imports {part}"


def names_of(node: ast.stmt) -> list[str]:
    """List the classes, functions and constants that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    parts = [part for target in targets for part in ast.walk(target)]
    return [part.id for part in parts if isinstance(part, ast.Name) and part.id.isupper()]


def test_no_two_classes_functions_or_constants_share_a_name() -> None:
    names = [name for path in FILES for node in ast.parse(path.read_text()).body for name in names_of(node)]
    several = {name for name, number in Counter(names).items() if number > 1 and not name.startswith("_")}
    assert several == {"run"}, "only the modules of commands have the same function"
