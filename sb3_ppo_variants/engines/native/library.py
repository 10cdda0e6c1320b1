"""The C++ library, called through its C interface. Calls release the GIL."""

import ctypes
from collections.abc import Callable
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import cast
from warnings import warn

import numpy as np

from sb3_ppo_variants.engines.native import digest_interface
from sb3_ppo_variants.engines.native.structures import Numbers, Outcome, Structure
from sb3_ppo_variants.guards.outputs import finite_test

INSTRUCTIONS = ("AVX-512", "AVX2", "plain")
# How to build the library. Without -e, Python would import the package without it if it runs in the clone.
REBUILD = "in a clone of sb3_ppo_variants, run: pip install --no-deps -e ."
FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
# Bytes in a cache line.
ALIGNMENT = 64


class Library:
    """The functions of the library.

    :param path: the file of the library
    :raises OSError: if the file cannot be loaded
    :raises AttributeError: if it is another library
    """

    def __init__(self, path: Path):
        self._functions = ctypes.CDLL(str(path))
        for name in ("ppo_interface", "ppo_instructions"):
            getattr(self._functions, name).restype = ctypes.c_char_p

    @property
    def interface(self) -> str:
        """The digest of the ``interface.hpp`` that the library was built with."""
        return bytes(self._functions.ppo_interface()).decode()

    @property
    def instructions(self) -> str:
        """The instruction set in use: the best that the processor has, unless :meth:`use` has selected another."""
        return bytes(self._functions.ppo_instructions()).decode()

    def use(self, instructions: str) -> bool:
        """Select an instruction set.

        :param instructions: one of ``INSTRUCTIONS``
        :return: False if the processor does not have it; the selection then stays the same
        """
        return bool(self._function("ppo_use")(instructions.encode()))

    def descent(self, dtype: np.dtype, *structures: Structure) -> Callable[[], int]:
        """Return a function that makes a pass of a descent. The contents of the structures may change between calls.

        :param structures: ``Networks``, ``Rollout``, ``Terms``, ``OwnLosses``, ``Proximal``, ``Pass``, ``Adam`` and
            ``Outcome``
        """
        return self._with_memory(f"ppo_descend_{dtype}", *structures)

    def acting(self, dtype: np.dtype, *structures: Structure) -> Callable[[], int]:
        """Return a function that computes actions, or only outputs or values of the networks.

        :param structures: ``Networks`` and ``Acting``, whose contents may change between calls
        """
        return self._with_memory(f"ppo_act_{dtype}", *structures)

    def mean_kl(self, dtype: np.dtype, networks: Structure, rollout: Structure) -> float:
        """Compute the mean of KL(old || new) over the rows of a ``Rollout`` with old parameters."""
        kl = ctypes.c_double()
        self._with_memory(f"ppo_compare_{dtype}", networks, rollout, kl)()
        return kl.value

    def convolve(self, convolutions: Structure, backward: bool) -> None:
        """Compute the outputs of convolutions, or from these the gradients.

        :param convolutions: a ``Convolutions``
        :param backward: whether to compute the gradients
        """
        self._with_memory("ppo_convolve" + "_backward" * backward, convolutions)()

    def normalizing(self, dtype: np.dtype, structure: Structure) -> Callable[[], int]:
        """Return a function that normalises observations and returns 0 if a number was not finite.

        :param structure: a ``Normalizing``, whose contents may change between calls
        """
        return partial(self._function(f"ppo_normalize_{dtype}"), ctypes.byref(structure))

    def are_finite(self, dtype: np.dtype, structure: Structure) -> Callable[[], bool]:
        """Return a function that tells whether numbers are finite.

        :param structure: a ``Numbers``, whose contents may change between calls
        """
        return cast(Callable[[], bool], partial(self._function(f"ppo_are_finite_{dtype}"), ctypes.byref(structure)))

    def _function(self, name: str) -> Callable[..., int]:
        function = self._functions[name]
        function.restype = ctypes.c_int64
        return function

    def _with_memory(self, name: str, *structures: Structure | ctypes.c_double) -> Callable[[], int]:
        """Return a function of the library with its arguments, the last of which is memory to compute in."""
        function, arguments = self._function(name), [*map(ctypes.byref, structures)]
        size = function(*arguments, None)  # Without memory the function returns how many bytes it needs.
        # Vectors that span two cache lines take twice as long to read.
        buffer = ctypes.create_string_buffer(size + ALIGNMENT)
        memory = (ctypes.c_char * size).from_buffer(buffer, -ctypes.addressof(buffer) % ALIGNMENT)
        return partial(function, *arguments, memory)


@cache
def library() -> Library | None:
    """Load the library, or return ``None`` if it was not built for this system.

    If it cannot be loaded, or was built for another interface, such as before a ``git pull``, a warning says how to
    rebuild it, and PyTorch computes in its place.
    """
    folder = Path(__file__).parent
    paths = (folder / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES)
    path = next(filter(Path.exists, paths), None)
    if path is None:
        return None
    try:
        found = Library(path)
        if found.interface == digest_interface(folder):
            return found
        problem = "was built for another interface"
    except (OSError, AttributeError) as error:
        problem = f"cannot be loaded ({error})"
    warn(f"{path} {problem}, so PyTorch computes in its place: to rebuild it, {REBUILD}", stacklevel=2)
    return None


def library_in_use() -> Library:
    """Return the library, whose presence an obstacle check has found."""
    found = library()
    assert found is not None
    return found


def native_test(array: np.ndarray) -> Callable[[], bool]:
    """Choose the fastest test of an array; see :func:`~sb3_ppo_variants.guards.outputs.finite_test`."""
    found = library()
    if found is None or array.dtype not in FLOATS:
        return finite_test(array)
    return found.are_finite(array.dtype, Numbers(array, array.size))


class Calls:
    """Functions in a form that the library can call. Keep this object alive while the library makes passes.

    Exceptions cannot propagate through the library, not even that of an interrupt which arrives before a function has
    begun. A function therefore reports its success in the outcome, as the last thing that it does.

    :param outcome: the outcome of the descent
    """

    def __init__(self, outcome: Outcome):
        self._outcome = outcome
        self._made: list[object] = []
        # The initial value stands for an interrupt that arrives before a function has begun.
        self._error: BaseException = KeyboardInterrupt()

    def address(self, function: Callable[..., object], *types: type) -> int | None:
        """Return the address of a function for the library.

        :param types: the types of its arguments
        """

        def call(*arguments: object) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._error = error
                return
            self._outcome.answered = 1

        made = ctypes.CFUNCTYPE(None, *types)(call)
        self._made.append(made)
        return ctypes.cast(made, ctypes.c_void_p).value

    def check(self) -> None:
        """Raise the error that ended the pass, if a function failed."""
        if not self._outcome.answered:
            raise self._error
