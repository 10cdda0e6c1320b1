"""The C++ library and its structures, called through its C interface. Calls release the GIL.

``interface.hpp`` defines the structures, and ``interface.cpp`` the functions. The library does not check what it is
given: :func:`fitting` checks arrays, and every :class:`Structure` refuses those that the library cannot read.
"""

import ctypes
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from warnings import warn

import numpy as np
from numpy.typing import DTypeLike

from sb3_ppo_variants.engines.native import digest_interface

INSTRUCTIONS = ("AVX-512", "AVX2", "plain")
# How to build the library. Without -e, Python would import the package without it if it runs in the clone.
REBUILD = "in a clone of sb3_ppo_variants, run: pip install --no-deps -e ."
FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
# Bytes in a cache line. Vectors that span two of them take twice as long to read.
ALIGNMENT = 64
POINTER, INTEGER, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
# What a field holds: a number, or the address of an array; ``None`` stands for a null pointer.
FieldValue: TypeAlias = "np.ndarray | ctypes.Array[Any] | float | None"
_INTERFACE = re.sub("//.*", "", Path(__file__).with_name("interface.hpp").read_text(encoding="utf-8"))
# The constants of each enumeration in ``interface.hpp``, which count from 0, by name.
CONSTANTS = {
    enumeration: {name.strip(): number for number, name in enumerate(names.split(","))}
    for enumeration, names in re.findall(r"enum (\w+) {(.*?)};", _INTERFACE, re.DOTALL)
}
# The columns of the statistics of minibatches; the last constant counts them.
MEASURED = [name.lower() for name in CONSTANTS["Statistics"]][:-1]


class Structure(ctypes.Structure):
    """A structure of ``interface.hpp``, which keeps the arrays it points to alive.

    :param values: the values of fields; those without one are zero or null
    """

    def __init__(self, **values: FieldValue):
        self._arrays = values
        super().__init__(**dict(zip(values, map(as_field, values.values()), strict=True)))


class Layer(Structure):
    """A layer with the gradients of its parameters."""


class Factor(Structure):
    """A factor of a hybrid distribution."""


class Networks(Structure):
    """Two multilayer perceptrons and the distribution of actions."""


class Rollout(Structure):
    """A rollout with one row per state."""


class Terms(Structure):
    """The terms of the loss."""


class OwnLosses(Structure):
    """Losses in Python: what the library tells them about a minibatch, and what they return."""


class Proximal(Structure):
    """The policy that an EWMA keeps close to."""


class Adam(Structure):
    """The parameters to train, with the state and the settings of Adam."""


class Pass(Structure):
    """A pass over the rollout, and what the passes of a descent have measured."""


class Acting(Structure):
    """The inputs and outputs of acting."""


class Normalizing(Structure):
    """Observations, and the statistics that normalise them."""


class Convolution(Structure):
    """A convolution with the gradients of its parameters and its outputs."""


class Convolutions(Structure):
    """Images, and the convolutions that they pass through."""


def _read_fields(structure: str) -> list[tuple[str, type]]:
    """Read the fields of a structure in ``interface.hpp``."""
    (body,) = re.findall(rf"struct {structure} {{(.*?)}};", _INTERFACE, re.DOTALL)
    functions_as_pointers = re.sub(r"\(\*(\w+)\)\(.*?\)", r"*\1", body)
    fields: list[tuple[str, type]] = []
    for declaration in functions_as_pointers.split(";")[:-1]:
        kind = POINTER if "*" in declaration else {"int64_t": INTEGER, "double": NUMBER}[declaration.split()[0]]
        fields += [(name, kind) for name in re.findall(r"(\w+)(?=,|$)", declaration)]
    return fields


for _structure in Structure.__subclasses__():
    _structure._fields_ = _read_fields(_structure.__name__)
AnyStructure = TypeVar("AnyStructure", bound=Structure)


def as_field(value: FieldValue) -> float | None:
    """Convert a value to what a field of a structure holds it: of arrays, the address.

    :raises ValueError: if an array is not contiguous or not aligned
    """
    if isinstance(value, np.ndarray):
        flags = value.flags
        if not flags.c_contiguous or not flags.aligned:
            raise ValueError("the library takes only contiguous arrays of aligned numbers")
        try:
            # Takes a third of the time of array.ctypes, and every rollout and update needs many addresses.
            return ctypes.addressof(ctypes.c_char.from_buffer(value.data))
        except (TypeError, ValueError):  # The array is read-only or empty.
            return value.ctypes.data
    return ctypes.addressof(value) if isinstance(value, ctypes.Array) else value


def as_array(layers: Sequence[AnyStructure]) -> "ctypes.Array[AnyStructure]":
    """Copy layers of the same kind into one contiguous array, to which a pointer to the first gives access."""
    array = (type(layers[0]) * len(layers))(*layers)
    array.kept = layers  # type: ignore[attr-defined]
    return array


def fitting(array: np.ndarray, name: str, dtype: DTypeLike, *shape: int) -> np.ndarray:
    """Check an array that the library is to read or to fill, and return it.

    :param name: what it contains, for the error
    :raises ValueError: if the array has another type or shape than the library takes
    """
    if array.dtype != dtype or array.shape != shape:
        found, wanted = f"{array.dtype} of shape {array.shape}", f"{np.dtype(dtype)} of {shape}"
        raise ValueError(f"{name}: {found}; the library takes {wanted}")
    return array


class Library(ctypes.CDLL):
    """The library. Its functions take structures, whose contents may change between calls."""

    @property
    def instructions(self) -> str:
        """The instruction set in use: the best that the processor has, unless :meth:`use` has selected another."""
        return self.text("ppo_instructions")

    def text(self, name: str) -> str:
        """Return the text that a function returns."""
        function = self[name]
        function.restype = ctypes.c_char_p
        return bytes(function()).decode()

    def use(self, instructions: str) -> bool:
        """Select an instruction set, one of ``INSTRUCTIONS``; return False if the processor does not have it."""
        return bool(self.ppo_use(instructions.encode()))


@cache
def library() -> Library | None:
    """Load the library, or return ``None`` if it was not built for this system.

    If there is none, it cannot be loaded, or was built for another interface, such as before a ``git pull``, a warning
    says how to build it, and PyTorch computes in its place.
    """
    folder = Path(__file__).parent
    paths = (folder / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES)
    path = next(filter(Path.exists, paths), None)
    try:
        if path is None:
            problem = f"{folder} has no native library"
        elif (found := Library(str(path))).text("ppo_interface") == digest_interface(folder):
            return found
        else:
            problem = f"{path} was built for another interface"
    except (OSError, AttributeError) as error:
        problem = f"{path} cannot be loaded ({error})"
    warn(
        f"{problem}, so PyTorch computes in its place, which takes several times as long: to build it, install a C++ "
        f"compiler, and {REBUILD}",
        stacklevel=2,
    )
    return None


def function_of(name: str, *structures: Structure | ctypes.c_double) -> Callable[..., int]:
    """Return a function of the library, which an engine's check has shown to be there, with its arguments."""
    found = library()
    assert found is not None
    function = found[name]
    function.restype = ctypes.c_int64
    return partial(function, *map(ctypes.byref, structures))


def with_memory(name: str, *structures: Structure | ctypes.c_double) -> Callable[[], int]:
    """Return a function of the library whose last argument is memory to compute in; see :func:`function_of`."""
    function = function_of(name, *structures)
    size = function(None)  # Without memory the function returns how many bytes it needs.
    buffer = ctypes.create_string_buffer(size + ALIGNMENT)
    return partial(function, (ctypes.c_char * size).from_buffer(buffer, -ctypes.addressof(buffer) % ALIGNMENT))
