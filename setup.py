"""Declares the native library; all else is in setup.cfg. Where it cannot be built, the package works without it."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("sb3_ppo_variants", "backends", "native")
# NaN must be seen, so that there is no -ffast-math.
GCC = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi"]
if "-g" not in os.environ.get("CFLAGS", ""):
    GCC.append("-g0")  # Python's own flags ask for symbols, which take a quarter of the time.
MSVC = ["/std:c++17", "/O2"]


def files(pattern: str) -> list[str]:
    """The library's files."""
    return sorted(path.as_posix() for path in NATIVE.glob(pattern))


class AllAtOnce(build_ext):
    """Compiles the files of the library side by side. They are few and take seconds each."""

    def build_extensions(self) -> None:
        """Build the library."""
        compile_files = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return list(chain.from_iterable(pool.map(lambda source: compile_files([source], **options), sources)))

        # That of MSVC sets itself up at its first file.
        if sys.platform != "win32":
            self.compiler.compile = compile_all
        super().build_extensions()


setup(
    cmdclass={"build_ext": AllAtOnce},
    ext_modules=[
        Extension(
            "sb3_ppo_variants.backends.native._native",
            sources=files("*.cpp"),
            depends=files("*.hpp"),
            extra_compile_args=MSVC if sys.platform == "win32" else GCC,
            optional=True,
            # It knows nothing of Python, so that one library serves all versions.
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
