"""The native library is used if it has the interface of the Python files beside it."""

import _ctypes
import ctypes
import os
import re
import shutil
import subprocess
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import pytest

from sb3_ppo_variants.engines import native
from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.native.library import Library
from sb3_ppo_variants.engines.native.networks import ACTIVATIONS, DISTRIBUTIONS

NATIVE = Path(native.__file__).parent
REBUILD = "so PyTorch computes in its place, which takes several times as long: to build it, install"


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


def test_a_comment_in_the_interface_changes_nothing(built: Path) -> None:
    with (built / "interface.hpp").open("a") as file:
        file.write("// A later remark.\n")
    assert found() is not None


def test_a_library_with_another_interface_is_not_used(built: Path) -> None:
    with (built / "interface.hpp").open("a") as file:
        file.write("struct Another { int64_t field; };\n")
    with pytest.warns(UserWarning, match=f"was built for another interface, {REBUILD}"):
        assert found() is None


def test_another_library_is_not_used(folder: Path) -> None:
    shutil.copy(_ctypes.__file__, folder / f"_native{EXTENSION_SUFFIXES[0]}")
    with pytest.warns(UserWarning, match=rf"cannot be loaded \(.*\), {REBUILD}"):
        assert found() is None


COMPILER = shutil.which(os.environ.get("CXX", "c++")) or ""
needs_compiler = pytest.mark.skipif(not COMPILER, reason="of systems with a C++ compiler")


@needs_compiler
def test_structures_lie_in_memory_as_the_compiler_lays_them(tmp_path: Path) -> None:
    """Compare the fields that Python reads from interface.hpp with offsets that a compiler finds."""
    classes = library.Structure.__subclasses__()
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "interface.hpp"', "int main() {"]
    expected = []
    for cls in classes:
        generic = re.search(rf"template <class T> struct {cls.__name__} ", (NATIVE / "interface.hpp").read_text())
        name = f"{cls.__name__}<float>" if generic else cls.__name__
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        expected.append(ctypes.sizeof(cls))
        for field, *_ in cls._fields_:
            lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
            expected.append(getattr(cls, field).offset)
    (tmp_path / "offsets.cpp").write_text("\n".join([*lines, "}"]))
    source, program = str(tmp_path / "offsets.cpp"), str(tmp_path / "offsets")
    subprocess.run([COMPILER, "-std=c++17", f"-I{NATIVE}", source, "-o", program], check=True)
    offsets = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    assert [int(offset) for offset in offsets] == expected and len(classes) == 13


def test_what_the_library_computes_is_used() -> None:
    assert library.CONSTANTS["Activations"].keys() == {*ACTIVATIONS.values()}
    assert library.CONSTANTS["Distributions"].keys() == {*DISTRIBUTIONS.values(), "HYBRID"}


def test_structures_take_only_what_the_library_reads() -> None:
    numbers = np.zeros((4, 6), np.float32)
    unaligned = np.frombuffer(bytearray(17), np.float32, 4, offset=1)
    for array in (numbers[:, ::2], numbers.T, unaligned):
        with pytest.raises(ValueError, match="only contiguous arrays of aligned numbers"):
            library.Normalizing(observations=array)
    with pytest.raises(ValueError, match=r"bias: float32 of shape \(4, 6\); the library takes float64 of \(4,\)"):
        library.fitting(numbers, "bias", np.float64, 4)


@pytest.mark.usefixtures("folder")
def test_the_library_may_be_absent() -> None:
    with pytest.warns(UserWarning, match=f"has no native library, {REBUILD}"):
        assert found() is None


def test_the_library_needs_no_newer_runtime_than_gcc_6_has() -> None:
    """Python's environment may have an older one than the compiler, as conda's often is."""
    (content,) = (file.read_bytes() for file in NATIVE.glob("_native.*"))
    if b"__asan_init" in content:
        pytest.skip("the sanitizers need a newer one")
    versions = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBCXX_([\d.]+)", content)}
    assert all(version <= (3, 4, 22) for version in versions)
