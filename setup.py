"""Declares the native library; everything else is in setup.cfg. If the build fails, the package works without it."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from runpy import run_path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

NATIVE = Path("sb3_ppo_variants", "engines", "native")
# A build for development has one instruction set only, and takes a fraction of the time.
ONLY = os.environ.get("ONLY_INSTRUCTIONS")
# A library with another interface than that of the Python files beside it is not used.
MACROS = [("PPO_INTERFACE", run_path(str(NATIVE / "__init__.py"))["digest_interface"](NATIVE))]
# No -ffast-math, because NaN must be detected. The debug symbols of Python's own flags take a quarter of the time.
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi", "-pthread"]
FLAGS += [] if "-g" in os.environ.get("CFLAGS", "") else ["-g0"]
LIBRARY = Extension(
    "sb3_ppo_variants.engines.native._native",
    [f"{NATIVE.as_posix()}/{file}.cpp" for file in (ONLY or "avx512 avx2 plain").split()]
    + [f"{NATIVE.as_posix()}/{file}.cpp" for file in ("interface", "observations", "threads")],
    depends=[*map(str, NATIVE.glob("*.hpp"))],
    define_macros=MACROS + ([("PPO_ONLY", ONLY)] if ONLY else []),
    extra_compile_args=["/std:c++17", "/O2"] if os.name == "nt" else FLAGS,
    extra_link_args=[] if os.name == "nt" else ["-pthread"],
    optional=True,
    py_limited_api=True,  # The library does not call Python, so one build serves all versions.
)


class BuildInParallel(build_ext):
    """Compiles the files of the library in parallel."""

    def build_extension(self, ext: Extension) -> None:
        """Build the library, unless it is for an editable installation that has it already."""
        built, target = self.get_ext_filename(ext.name), self.get_ext_fullpath(ext.name)
        if self.editable_mode and os.path.exists(built) and not newer_group([*ext.sources, *ext.depends], built):
            self.mkpath(os.path.dirname(target))
            self.copy_file(built, target)
            return
        compile_files, pool = self.compiler.compile, ThreadPoolExecutor(os.cpu_count())
        self.compiler.compile = lambda sources, **options: [
            *chain(*pool.map(lambda source: compile_files([source], **options), sources))
        ]
        super().build_extension(ext)


# Links of the README are relative, and those on PyPI lead to GitHub.
GITHUB = "https://github.com/sb3-ppo-variants/sb3_ppo_variants"
DESCRIPTION = Path("README.md").read_text(encoding="utf-8")
for name, kind in (("picture", "raw"), (r"\w+", "blob")):
    DESCRIPTION = re.sub(rf"^\[({name})\]: (?=docs/)", rf"[\1]: {GITHUB}/{kind}/main/", DESCRIPTION, flags=re.MULTILINE)
setup(
    cmdclass={"build_ext": BuildInParallel},
    # The Makefile builds the library while pip downloads the dependencies.
    ext_modules=[] if "WITHOUT_LIBRARY" in os.environ else [LIBRARY],
    long_description=DESCRIPTION,
)
