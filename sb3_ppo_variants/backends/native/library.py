"""The C++ library, called through its C interface. Calls release the GIL."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from sb3_ppo_variants.backends.native.sources import digest
from sb3_ppo_variants.backends.native.structures import Layouts, Structure, layouts, layouts_of

# The first bytes of 64-bit ELF files in little-endian order.
MAGIC = b"\x7fELF\x02\x01"
# The header up to and with the counts: magic numbers, then, after 16 bytes, the offsets of the two tables, and their
# entries' sizes and counts.
HEADER = struct.Struct("<32xQQ6xHHHH")
# An entry of the table of segments: offset and size in the file.
SEGMENT = struct.Struct("<8xQ16xQ")


def check_length(path: Path) -> None:
    """Check that a file is as long as its headers say, if it is in the format of Linux.

    :raises OSError: if it is shorter
    """
    content = path.read_bytes()
    if content.startswith(MAGIC) and len(content) < (needed := _needed(content)):
        raise OSError(f"it has {len(content):,} bytes instead of at least {needed:,}")


def _needed(content: bytes) -> int:
    """Return the end of what the headers of a file describe, or of the headers that are missing."""
    try:
        segments, sections, segment_size, n_segments, section_size, n_sections = HEADER.unpack_from(content)
        ends = [sections + section_size * n_sections]
        for i in range(n_segments):
            offset, size = SEGMENT.unpack_from(content, segments + segment_size * i)
            ends.append(offset + size)
        return max(ends)
    except struct.error:
        return len(content) + 1


INSTRUCTIONS = ("AVX-512", "AVX2", "plain")
# Functions that are compiled for one type of numbers only.
OTHERS = (
    "ppo_use", "ppo_may_filter", "ppo_filter", "ppo_filter_gradient", "ppo_convolve", "ppo_convolve_backward"
)  # fmt: skip
# Functions that are compiled for single and for double precision.
TYPED = ("ppo_descend", "ppo_act", "ppo_compare", "ppo_normalize", "ppo_are_finite")
# Bytes in a cache line.
LINE = 64
# The command that builds the library. Without --no-cache-dir, pip may install what it built without a compiler.
REBUILD = "pip install --force-reinstall --no-deps --no-cache-dir ."


class Library:
    """The functions of the library.

    :param path: the file of the library
    :raises OSError: if the file cannot be loaded
    :raises AttributeError: if it lacks a function
    """

    def __init__(self, path: Path):
        self._functions = ctypes.CDLL(str(path))
        for name in ("ppo_sources", "ppo_instructions"):
            getattr(self._functions, name).restype = ctypes.c_char_p
        typed = product(TYPED, ("float32", "float64"))
        for name in (*OTHERS, *map("_".join, typed)):
            getattr(self._functions, name).restype = ctypes.c_int64

    @property
    def functions(self) -> ctypes.CDLL:
        """All functions by their names in C."""
        return self._functions

    @property
    def sources(self) -> str:
        """The digest of the C++ files that the library was built from."""
        return self._functions.ppo_sources().decode()

    @property
    def layouts(self) -> Layouts:
        """The layouts of the structures that the library was compiled with."""
        return layouts_of(self._functions)

    @property
    def instructions(self) -> str:
        """The instruction set in use: the best that the processor has, unless :meth:`use` has selected another."""
        return self._functions.ppo_instructions().decode()

    def use(self, instructions: str) -> bool:
        """Select an instruction set.

        :param instructions: one of ``INSTRUCTIONS``
        :return: False if the processor does not have it; the selection then stays the same
        """
        return bool(self._functions.ppo_use(instructions.encode()))

    def descent(self, dtype: np.dtype, *structures: Structure) -> Callable[[], object]:
        """Return a function that makes a pass of a descent.

        The contents of the structures may change between calls.

        :param structures: ``Networks``, ``Rollout``, ``Terms``, ``Objective``, ``Pass``, ``Adam`` and ``Outcome``
        """
        return _with_memory(getattr(self._functions, f"ppo_descend_{dtype}"), structures)

    def acting(self, dtype: np.dtype, *structures: Structure) -> Callable[[], object]:
        """Return a function that computes actions, or only outputs or values of the networks.

        The contents of the structures may change between calls.

        :param structures: ``Networks`` and ``Acting``
        """
        return _with_memory(getattr(self._functions, f"ppo_act_{dtype}"), structures)

    def mean_kl(self, dtype: np.dtype, networks: Structure, rollout: Structure) -> float:
        """Return the mean of KL(old || new) over the rows of a rollout.

        :param networks: a ``Networks``
        :param rollout: a ``Rollout`` with old parameters
        """
        kl = ctypes.c_double()
        _with_memory(getattr(self._functions, f"ppo_compare_{dtype}"), [networks, rollout, kl])()
        return kl.value

    def normalizing(self, dtype: np.dtype, structure: Structure) -> Callable[[], int]:
        """Return a function that normalises observations and returns 0 if a number was not finite.

        :param structure: a ``Normalizing``, whose contents may change between calls
        """
        return partial(getattr(self._functions, f"ppo_normalize_{dtype}"), ctypes.byref(structure))

    def are_finite(self, dtype: np.dtype, structure: Structure) -> Callable[[], bool]:
        """Return a function that tells whether numbers are finite.

        :param structure: a ``Numbers``, whose contents may change between calls
        """
        return partial(getattr(self._functions, f"ppo_are_finite_{dtype}"), ctypes.byref(structure))


def _with_memory(function: Callable[..., int], structures: Sequence[Any]) -> Callable[[], object]:
    arguments = [*map(ctypes.byref, structures)]
    # Without memory the function returns how many bytes it needs.
    return partial(function, *arguments, _memory(function(*arguments, None)))


def _memory(size: int) -> ctypes.Array:
    """Return zeros aligned to a cache line, because vectors that span two lines take twice as long to read."""
    buffer = ctypes.create_string_buffer(size + LINE)
    return (ctypes.c_char * size).from_buffer(buffer, -ctypes.addressof(buffer) % LINE)


@cache
def library() -> Library | None:
    """Return the library, or ``None`` if it was not built for this system.

    :raises ImportError: if it cannot be loaded, for example because its file was cut short; or if it was built from
        other sources than those beside it, for example before a ``git pull`` in an editable installation
    """
    folder = Path(__file__).parent
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"_native{suffix}"
        if path.exists():
            return _checked(path, digest(folder))
    return None


def _checked(path: Path, sources: str | None) -> Library:
    try:
        check_length(path)
        found = Library(path)
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded: {error}. Install sb3_ppo_variants again: {REBUILD}") from error
    except AttributeError:
        found = None
    if found is None or sources not in (None, found.sources):
        raise ImportError(f"{path} was built from other sources than those beside it; build it again: make install")
    theirs = found.layouts
    differing = [name for name, layout in layouts().items() if theirs.get(name) != layout]
    if differing:
        raise ImportError(
            f"{path} was built for another version of structures.py: they differ in {', '.join(differing)}. "
            f"Install sb3_ppo_variants again: {REBUILD}"
        )
    return found
