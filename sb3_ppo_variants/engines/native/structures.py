"""The structures of the C interface, as ``interface.hpp`` defines them, and checks of what they point to."""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

POINTER, INTEGER, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
# What a field holds: a number, or the address of an array; ``None`` stands for a null pointer.
FieldValue: TypeAlias = "np.ndarray | ctypes.Array[Any] | float | None"

_INTERFACE = re.sub("//.*", "", Path(__file__).with_name("interface.hpp").read_text(encoding="utf-8"))


def _fields(structure: str) -> list[tuple[str, type]]:
    """Read the fields of a structure in ``interface.hpp``."""
    (body,) = re.findall(rf"struct {structure} {{(.*?)}};", _INTERFACE, re.DOTALL)
    functions_as_pointers = re.sub(r"\(\*(\w+)\)\(.*?\)", r"*\1", body)
    fields: list[tuple[str, type]] = []
    for declaration in functions_as_pointers.split(";")[:-1]:
        kind = POINTER if "*" in declaration else {"int64_t": INTEGER, "double": NUMBER}[declaration.split()[0]]
        fields += [(name, kind) for name in re.findall(r"(\w+)(?=,|$)", declaration)]
    return fields


# The constants of each enumeration in ``interface.hpp``, which count from 0, by name.
CONSTANTS = {
    enumeration: {name.strip(): number for number, name in enumerate(names.split(","))}
    for enumeration, names in re.findall(r"enum (\w+) {(.*?)};", _INTERFACE, re.DOTALL)
}
# The columns of the statistics of minibatches; the last constant counts them.
MEASURED = [name.lower() for name in CONSTANTS["Statistics"]][:-1]


class Structure(ctypes.Structure):
    """A structure that keeps the arrays it points to alive.

    :param values: one value per field; arrays are contiguous
    :param named: other fields by name; those without a value are zero or null
    """

    def __init__(self, *values: FieldValue, **named: FieldValue):
        self._arrays = values, named
        super().__init__(*map(as_field, values), **{name: as_field(value) for name, value in named.items()})


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


def fitting(array: np.ndarray, name: str, dtype: DTypeLike, *shape: int) -> np.ndarray:
    """Check an array that the library is to read or to fill, and return it.

    :param name: what it contains, for the error
    :param dtype: the type that the library takes
    :param shape: the shape that the library takes
    :raises ValueError: if the array has another type or shape
    """
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{name}: {array.dtype} of shape {array.shape}; the library takes {np.dtype(dtype)} of {shape}"
        )
    return array


def as_array(layers: Sequence[AnyStructure]) -> "ctypes.Array[AnyStructure]":
    """Copy layers of the same kind into one contiguous array, to which a pointer to the first gives access."""
    array = (type(layers[0]) * len(layers))(*layers)
    array.kept = layers  # type: ignore[attr-defined]
    return array


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
    """The policy that an objective stays close to, if it is not the policy of the rollout."""


class Adam(Structure):
    """The parameters to train, with the state and the settings of Adam."""


class Pass(Structure):
    """A pass over the rollout."""


class Outcome(Structure):
    """The outcome of a descent."""


class Acting(Structure):
    """The inputs and outputs of acting."""


class Normalizing(Structure):
    """Observations, and the statistics that normalise them."""


class Numbers(Structure):
    """An array whose numbers are checked."""


class Convolution(Structure):
    """A convolution with the gradients of its parameters and its outputs."""


class Convolutions(Structure):
    """Images, and the convolutions that they pass through."""


for _structure in Structure.__subclasses__():
    _structure._fields_ = _fields(_structure.__name__)
