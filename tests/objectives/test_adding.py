"""An objective of the package is in four files, C++ included, and in the table of its tests."""

import re
from pathlib import Path

import pytest

import sb3_ppo_variants
from sb3_ppo_variants.objectives import NativeObjective, list_objectives

PACKAGE = Path(sb3_ppo_variants.__file__).parent
TEXTS = {
    str(path.relative_to(PACKAGE)): path.read_text()
    for suffix in ("py", "hpp")
    for path in PACKAGE.rglob(f"*.{suffix}")
}
# The names of the others are words of other files too.
OF_THE_FIELD = ["SAPO", "DPO", "CISPO", "Rollback", "KLHinge"]


@pytest.mark.parametrize("name", OF_THE_FIELD)
def test_an_objective_is_in_four_files(name: str) -> None:
    found = list_objectives()[name]
    assert issubclass(found, NativeObjective)
    pattern = re.compile(rf"\b({name}|{found.term})\(|\b{name},|\b{found.term}\b")
    files = {path for path, text in TEXTS.items() if pattern.search(text)}
    native = {f"engines/native/{file}.hpp" for file in ("interface", "objectives")}
    assert native | {"objectives/__init__.py"} < files and len(files) == 4
