"""Declares the native library; everything else is in setup.cfg. If the build fails, the package works without it."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runpy import run_path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("sb3_ppo_variants", "engines", "native")
# A library with another interface than that of the Python files beside it is not used.
MACROS = [("PPO_INTERFACE", run_path(str(NATIVE / "__init__.py"))["digest_interface"](NATIVE))]
SETS = ["avx512", "avx2", "plain"]
# A build for development has one instruction set only, and takes a fraction of the time.
if only := os.environ.get("ONLY_INSTRUCTIONS"):
    SETS, MACROS = [only], [*MACROS, ("PPO_ONLY", only)]
SOURCES = [f"{NATIVE.as_posix()}/{name}.cpp" for name in [*SETS, "interface", "observations", "threads"]]
# No -ffast-math, because NaN must be detected. The debug symbols of Python's own flags take a quarter of the time.
GCC = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi", "-pthread"]
GCC += [] if "-g" in os.environ.get("CFLAGS", "") else ["-g0"]


class BuildInParallel(build_ext):
    """Compiles the files of the library in parallel."""

    def build_extensions(self) -> None:
        """Build the library."""
        if self.compiler.compiler_type == "msvc":
            self.extensions[0].extra_compile_args = ["/std:c++17", "/O2"]
        else:
            compile_files, pool = self.compiler.compile, ThreadPoolExecutor(os.cpu_count())
            self.compiler.compile = lambda sources, *args, **options: [
                file
                for files in pool.map(lambda source: compile_files([source], *args, **options), sources)
                for file in files
            ]
        super().build_extensions()


# The library does not call Python, so one build serves all versions.
LIBRARY = Extension(
    "sb3_ppo_variants.engines.native._native",
    SOURCES,
    depends=[*map(str, NATIVE.glob("*.hpp"))],
    define_macros=MACROS,
    extra_compile_args=GCC,
    extra_link_args=["-pthread"],
    optional=True,
    py_limited_api=True,
)
setup(
    cmdclass={"build_ext": BuildInParallel},
    # The Makefile builds it while pip downloads the dependencies.
    ext_modules=[] if "WITHOUT_LIBRARY" in os.environ else [LIBRARY],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
