"""Declares the native library; all else is in setup.cfg. Where it cannot be built, the package works without it."""

import sys
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("sb3_ppo_variants", "backends", "native")
# NaN must be seen, so that there is no -ffast-math.
GCC = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi"]
MSVC = ["/std:c++17", "/O2"]


def files(pattern: str) -> list[str]:
    """The library's files."""
    return sorted(path.as_posix() for path in NATIVE.glob(pattern))


setup(
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
