"""The library in C++, called through its C interface, which releases the interpreter's lock."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np

from sb3_ppo_variants.backends.native.structures import Structure

INSTRUCTIONS = ("AVX-512", "AVX2", "plain")
# Bytes of a line of the cache.
LINE = 64


class Library:
    """The functions of the library.

    :param path: its file
    :raises OSError: if it cannot be loaded
    """

    def __init__(self, path: Path):
        self._functions = ctypes.CDLL(str(path))
        self._functions.ppo_instructions.restype = ctypes.c_char_p
        self._functions.ppo_use.restype = ctypes.c_int64
        for name in ("ppo_descend", "ppo_act", "ppo_normalize"):
            for dtype in ("float32", "float64"):
                getattr(self._functions, f"{name}_{dtype}").restype = ctypes.c_int64

    @property
    def functions(self) -> ctypes.CDLL:
        """All functions, by their names in C."""
        return self._functions

    @property
    def instructions(self) -> str:
        """The instructions in use: the best that the processor has, if :meth:`use` has not chosen others."""
        return self._functions.ppo_instructions().decode()

    def use(self, instructions: str) -> bool:
        """Use other instructions.

        :param instructions: one of ``INSTRUCTIONS``
        :return: False if the processor does not have them, which changes nothing
        """
        return bool(self._functions.ppo_use(instructions.encode()))

    def descent(self, dtype: np.dtype, *structures: Structure) -> Callable[[], object]:
        """What makes the passes of a descent.

        :param structures: ``Networks``, ``Rollout``, ``Terms``, ``Passes``, ``Adam`` and ``Outcome``
        """
        return _with_memory(getattr(self._functions, f"ppo_descend_{dtype}"), structures)

    def acting(self, dtype: np.dtype, *structures: Structure) -> Callable[[], object]:
        """What computes actions, or parts of what leads to them; the structures may change between calls.

        :param structures: ``Networks`` and ``Acting``
        """
        return _with_memory(getattr(self._functions, f"ppo_act_{dtype}"), structures)

    def normalizing(self, dtype: np.dtype, structure: Structure) -> Callable[[], int]:
        """What normalises observations, and says whether all numbers were finite; the structure may change.

        :param structure: a ``Normalizing``
        """
        return partial(getattr(self._functions, f"ppo_normalize_{dtype}"), ctypes.byref(structure))


def _with_memory(function: Callable[..., int], structures: Sequence[Structure]) -> Callable[[], object]:
    arguments = [*map(ctypes.byref, structures)]
    # Without memory it says how much it needs.
    return partial(function, *arguments, _memory(function(*arguments, None)))


def _memory(size: int) -> ctypes.Array:
    """Zeros that begin where a line of the cache does, as vectors that lie in two lines take twice as long to read."""
    buffer = ctypes.create_string_buffer(size + LINE)
    return (ctypes.c_char * size).from_buffer(buffer, -ctypes.addressof(buffer) % LINE)


@cache
def library() -> Library | None:
    """The library; ``None`` if it was not built, or for another system.

    :raises ImportError: if it was built from older sources, as after ``git pull`` in an editable installation
    """
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_native{suffix}")
        if path.exists():
            try:
                return Library(path)
            except AttributeError as error:
                raise ImportError(f"{path} was built from older sources; build it again: make install") from error
    return None
