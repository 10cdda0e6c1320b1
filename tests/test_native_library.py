"""The native library is refused if it was built from other sources than those beside it."""

import _ctypes
import shutil
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from sb3_ppo_variants.backends import native
from sb3_ppo_variants.backends.native import library
from sb3_ppo_variants.backends.native.library import Library

NATIVE = Path(native.__file__).parent
REFUSED = "was built from other sources than those beside it; build it again: make install"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty folder, in which the library is then looked for."""
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    return tmp_path


@pytest.fixture
def built(folder: Path) -> Path:
    """Return the folder with the library and its sources in it."""
    files = [*NATIVE.glob("_native.*")]
    if not files:
        pytest.skip("the native library was not built")
    for file in [*files, *NATIVE.glob("*.cpp"), *NATIVE.glob("*.hpp")]:
        shutil.copy(file, folder)
    return folder


def found() -> Library | None:
    return library.library.__wrapped__()


@pytest.mark.usefixtures("built")
def test_a_library_of_these_sources_is_used() -> None:
    assert found() is not None


def test_a_library_without_sources_is_used(built: Path) -> None:
    for file in built.glob("*.?pp"):
        file.unlink()
    assert found() is not None


@pytest.mark.parametrize("name", ["interface.hpp", "plain.cpp"])
def test_a_library_of_other_sources_is_refused(name: str, built: Path) -> None:
    with (built / name).open("a") as file:
        file.write("// A later change.\n")
    with pytest.raises(ImportError, match=REFUSED):
        found()


def test_a_library_with_another_interface_is_refused(folder: Path) -> None:
    shutil.copy(_ctypes.__file__, folder / f"_native{EXTENSION_SUFFIXES[0]}")
    with pytest.raises(ImportError, match=REFUSED):
        found()


@pytest.mark.usefixtures("folder")
def test_the_library_may_be_absent() -> None:
    assert found() is None
