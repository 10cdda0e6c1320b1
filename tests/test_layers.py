"""Imports go downwards and in no circle, and no two things share a name."""

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import sb3_ppo_variants

ROOT = Path(sb3_ppo_variants.__file__).parent
# From bottom to top. A part imports from its own layer and from lower ones.
LAYERS = {
    "pure functions and values": [
        "errors", "layout", "kl", "distributions", "hybrid", "arguments", "generators", "commandline", "losses",
        "limits", "objectives",
    ],
    "data and its owners": ["processes", "statistics", "interrupts", "envs", "rollout", "collector", "saving"],
    "policies, updates and engines": ["policies", "update", "separate", "snapshot", "engines"],
    "the base algorithm": ["callbacks", "checks", "ppo"],
    "the variants": ["variants", "evaluation"],
    "what is made of them": ["recipes", "zoo", "compare", "__main__"],
}  # fmt: skip
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def level(part: str) -> int:
    (found,) = (i for i, names in enumerate(LAYERS.values()) if part in names)
    return found


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, without the name of the package."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, *parts = name.split(".")
            if package == ROOT.name:
                while parts and not is_module(parts):
                    parts.pop()
                modules.add(".".join(parts))
    return modules - {""}


def is_module(parts: list[str]) -> bool:
    path = ROOT.joinpath(*parts)
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downwards(path: Path) -> None:
    own = module_of(path).split(".")[0]
    for module in imported(path):
        assert level(module.split(".")[0]) <= level(own), f"{own} imports {module}"


def test_no_imports_go_in_a_circle() -> None:
    TopologicalSorter({module_of(path): imported(path) - {module_of(path)} for path in FILES}).prepare()


def names_of(node: ast.stmt) -> list[str]:
    """List the classes, functions and constants that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    parts = [part for target in targets for part in ast.walk(target)]
    return [part.id for part in parts if isinstance(part, ast.Name) and part.id.isupper()]


def test_no_two_classes_functions_or_constants_share_a_name() -> None:
    names = [name for path in FILES for node in ast.parse(path.read_text()).body for name in names_of(node)]
    assert not {name for name, number in Counter(names).items() if number > 1 and not name.startswith("_")}
