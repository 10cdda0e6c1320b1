"""Declares the native library; everything else is in setup.cfg. If the build fails, the package works without it."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runpy import run_path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("sb3_ppo_variants", "engines", "native")
# A build for development has one instruction set only, and takes a fraction of the time.
ONLY = os.environ.get("ONLY_INSTRUCTIONS")
FILES = [*([ONLY] if ONLY else ["avx512", "avx2", "plain"]), "interface", "observations", "threads"]
# A library with another interface than that of the Python files beside it is not used.
MACROS = [("PPO_INTERFACE", run_path(str(NATIVE / "__init__.py"))["digest_interface"](NATIVE))]
# No -ffast-math, because NaN must be detected. The debug symbols of Python's own flags take a quarter of the time.
GCC = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi", "-pthread"]
GCC += [] if "-g" in os.environ.get("CFLAGS", "") else ["-g0"]
# The library does not call Python, so one build serves all versions.
LIBRARY = Extension(
    "sb3_ppo_variants.engines.native._native",
    [f"{NATIVE.as_posix()}/{file}.cpp" for file in FILES],
    depends=[*map(str, NATIVE.glob("*.hpp"))],
    define_macros=[*MACROS, *([("PPO_ONLY", ONLY)] if ONLY else [])],
    extra_compile_args=["/std:c++17", "/O2"] if os.name == "nt" else GCC,
    extra_link_args=[] if os.name == "nt" else ["-pthread"],
    optional=True,
    py_limited_api=True,
)


class BuildInParallel(build_ext):
    """Compiles the files of the library in parallel."""

    def build_extensions(self) -> None:
        """Build the library."""
        compile_files, pool = self.compiler.compile, ThreadPoolExecutor(os.cpu_count())

        def compile_each(sources: list[str], *args: Any, **options: Any) -> list[str]:
            made = pool.map(lambda source: compile_files([source], *args, **options), sources)
            return [object_file for files in made for object_file in files]

        self.compiler.compile = compile_each
        super().build_extensions()


setup(
    cmdclass={"build_ext": BuildInParallel},
    # The Makefile builds it while pip downloads the dependencies.
    ext_modules=[] if "WITHOUT_LIBRARY" in os.environ else [LIBRARY],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
