"""Wheels say whether they have the native library; and editable installations print no warnings."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("setuptools.command.bdist_wheel")
ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Copy what setuptools reads."""
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    built = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(ROOT / "sb3_ppo_variants", tmp_path / "sb3_ppo_variants", ignore=built)
    return tmp_path


def printed(clone: Path, *command: str, **variables: str) -> str:
    """Run a command of setuptools, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", *command],
        cwd=clone,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_wheel_with_the_library_is_for_this_platform(clone: Path) -> None:
    printed(clone, "bdist_wheel")
    (wheel,) = (clone / "dist").iterdir()
    assert "-cp310-abi3-" in wheel.name and not wheel.name.endswith("any.whl")


@pytest.mark.skipif(sys.platform == "win32", reason="variables do not choose the compiler")
def test_editable_installations_print_no_warnings(clone: Path) -> None:
    assert "Editable installation" not in printed(clone, "editable_wheel", CC="false", CXX="false")
