"""Declares the native library; everything else is in setup.cfg. If the build fails, the package works without it."""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from runpy import run_path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

PACKAGE = "sb3_ppo_variants"
SUFFIXES = (".py", ".cpp", ".hpp")
NATIVE = Path(PACKAGE, "backends", "native")
# No -ffast-math, because NaN must be detected.
GCC = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi", "-pthread"]
if "-g" not in os.environ.get("CFLAGS", ""):
    GCC.append("-g0")  # Python's own flags ask for debug symbols, which take a quarter of the time.
MSVC = ["/std:c++17", "/O2"]
# A third of the time to compile is for the instructions that every processor has. Where nearly all have better ones, it
# is enough to optimize those a little.
FALLBACK = ["-O2"] if platform.machine().lower() in ("x86_64", "amd64") else []
# The library is refused if it was built from other sources than those beside it.
SOURCES = run_path(str(NATIVE / "__init__.py"))["digest_sources"](NATIVE)


def files(pattern: str) -> list[str]:
    """Return the files of the library that match a pattern."""
    return sorted(path.as_posix() for path in NATIVE.glob(pattern))


class WithoutLeftovers(build):
    """Builds without files that are gone since an earlier build, whose folder setuptools installs as a whole."""

    def run(self) -> None:
        """Remove them from the folder, and build."""
        for built in Path(self.build_lib, PACKAGE).rglob("*"):
            if built.suffix in SUFFIXES and not built.relative_to(self.build_lib).exists():
                built.unlink()
        super().run()


class AllAtOnce(build_ext):
    """Compiles the files of the library in parallel. There are few of them, and each takes seconds."""

    def build_extensions(self) -> None:
        """Build the library."""
        is_msvc = self.compiler.compiler_type == "msvc"
        for extension in self.extensions:
            extension.extra_compile_args = MSVC if is_msvc else GCC
            extension.extra_link_args = [] if is_msvc else ["-pthread"]
        compile_files = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            def compile_file(source: str) -> list[str]:
                own = FALLBACK if Path(source).name == "plain.cpp" else []
                return compile_files([source], **options | {"extra_postargs": options["extra_postargs"] + own})

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return list(chain.from_iterable(pool.map(compile_file, sources)))

        # MSVC's compiler object initialises itself when it compiles its first file, which is not safe in parallel.
        if not is_msvc:
            self.compiler.compile = compile_all
        super().build_extensions()


class TaggedAsBuilt(bdist_wheel):
    """Tags a wheel for this platform only if it contains the library. Without a compiler, the wheel is for any."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of the wheel."""
        building = self.get_finalized_command("build_ext")
        # Editable installations ask before they build.
        if os.path.isdir(self.bdist_dir) and not any(map(os.path.exists, building.get_outputs())):
            self.root_is_pure = True
            return "py3", "none", "any"
        return super().get_tag()


LIBRARY = Extension(
    "sb3_ppo_variants.backends.native._native",
    sources=files("*.cpp"),
    depends=files("*.hpp"),
    define_macros=[("PPO_SOURCES", SOURCES)],
    optional=True,
    # The library does not call Python, so one build serves all versions.
    py_limited_api=True,
)

setup(
    cmdclass={"build": WithoutLeftovers, "build_ext": AllAtOnce, "bdist_wheel": TaggedAsBuilt},
    # The Makefile builds it while pip downloads the dependencies.
    ext_modules=[] if "WITHOUT_LIBRARY" in os.environ else [LIBRARY],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
