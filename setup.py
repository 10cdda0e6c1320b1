"""Declares what setup.cfg cannot say: the native library, without which the package works too, and PyPI's README."""

import re
import sys
from pathlib import Path

from setuptools import Extension, setup

REPOSITORY = "https://github.com/sb3-ppo-variants/sb3_ppo_variants"
NATIVE = Path("sb3_ppo_variants", "backends", "native")
# NaN must be seen, so that there is no -ffast-math.
GCC = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi"]
MSVC = ["/std:c++17", "/O2"]


def files(pattern: str) -> list[str]:
    """The library's files."""
    return sorted(path.as_posix() for path in NATIVE.glob(pattern))


def readme() -> str:
    """The README with links that lead to the repository from wherever it is shown."""
    text = Path("README.md").read_text(encoding="utf-8")
    relative = r"(?!\w+:|#)"
    text = re.sub(rf"(!\[[^]]*\]\(){relative}", rf"\1{REPOSITORY}/raw/main/", text)
    text = re.sub(rf'(<(?:img|source)[^>]* src(?:set)?="){relative}', rf"\1{REPOSITORY}/raw/main/", text)
    return re.sub(rf'(\]\(|<a href="){relative}', rf"\1{REPOSITORY}/blob/main/", text)


setup(
    long_description=readme(),
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
