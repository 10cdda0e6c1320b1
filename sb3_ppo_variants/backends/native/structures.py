"""The structures of the C interface, as in ``interface.hpp`` and in the same order."""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch as th

POINTER, COUNT, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double

# How the advantages of minibatches are normalised: not at all, by the library within each minibatch, or in advance and
# in the order of the pass.
NOT_NORMALIZED, NORMALIZED, NORMALIZED_IN_ORDER = range(3)

# The columns of the statistics of minibatches.
MEASURED = ("policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction", "loss")


class Structure(ctypes.Structure):
    """A structure that keeps the arrays it points to alive.

    :param values: one value per field: a contiguous array, a number, or ``None`` for a null pointer
    """

    def __init__(self, *values: np.ndarray | ctypes.Array | float | None):
        self._arrays = values
        super().__init__(*map(_as_field, values))


def _as_field(value: np.ndarray | ctypes.Array | float | None) -> float | None:
    if isinstance(value, np.ndarray):
        flags = value.flags
        if not flags.c_contiguous or not flags.aligned:
            raise ValueError("the library takes only contiguous arrays of aligned numbers")
        return _address(value)
    return ctypes.addressof(value) if isinstance(value, ctypes.Array) else value


def _address(array: Any) -> int:
    try:
        # Takes a third of the time of array.ctypes, and every rollout and update needs many addresses.
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # The array is read-only or empty.
        return array.ctypes.data


def fitting(array: np.ndarray, name: str, dtype: Any, *shape: int) -> np.ndarray:
    """Return an array that the library is to read or to fill.

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


def are_singles(tensor: th.Tensor) -> bool:
    """Whether a tensor has numbers in single precision that the library can read, once they are contiguous."""
    return tensor.dtype == th.float32 and tensor.device.type == "cpu" and tensor.data_ptr() % tensor.itemsize == 0


def check_rows(rows: np.ndarray, count: int) -> None:
    """Check that indices select rows that exist.

    :param count: the number of rows
    :raises IndexError: if one does not
    """
    if len(rows) and not 0 <= rows.min() <= rows.max() < count:
        raise IndexError(f"rows from {rows.min()} to {rows.max()} were selected, but there are only {count}")


def _fields(pointers: str = "", counts: str = "", numbers: str = "") -> list[tuple[str, type]]:
    """Return fields of each type, given their names separated by spaces."""
    kinds = ((POINTER, pointers), (COUNT, counts), (NUMBER, numbers))
    return [(name, kind) for kind, names in kinds for name in names.split()]


class Layer(Structure):
    """A layer with the gradients of its parameters."""

    _fields_ = _fields("weight bias d_weight d_bias", "inputs outputs")


class Networks(Structure):
    """Two multilayer perceptrons and the distribution of actions."""

    _fields_ = [
        *_fields("actor critic", "actor_layers critic_layers activation distribution"),
        *_fields("parts", "n_parts"),
        *_fields("log_std d_log_std"),
    ]


class Rollout(Structure):
    """A rollout with one row per state."""

    _fields_ = _fields("features actions old_log_prob advantages returns old_values old", "rows action_size old_size")


class Terms(Structure):
    """The terms of the loss."""

    _fields_ = [
        *_fields(numbers="clip_range kl_coef ent_coef vf_coef clip_range_vf"),
        *_fields(counts="advantages of_policy of_value"),
    ]


class Adam(Structure):
    """The parameters to train, with the state and the settings of Adam."""

    _fields_ = _fields("parameters gradient first second", "size steps", "learning_rate beta1 beta2 epsilon max_norm")


class Pass(Structure):
    """A pass over the rollout."""

    _fields_ = _fields("permutation average_kl average_gradient", "batch_size", "most_kl")


class Outcome(Structure):
    """The outcome of a descent."""

    _fields_ = _fields("measured", "minibatches averaged", "norm")


class Acting(Structure):
    """The inputs and outputs of acting."""

    _fields_ = [
        *_fields("features noise low high outputs actions clipped log_probs values"),
        *_fields(counts="rows action_size step is_finite"),
    ]


class Normalizing(Structure):
    """Observations, and the statistics that normalise them."""

    _fields_ = [
        *_fields("observations mean variance normalized", "rows columns updates"),
        *_fields(numbers="count epsilon limit"),
    ]


class Numbers(Structure):
    """Numbers of any meaning."""

    _fields_ = _fields("numbers", "count")


class Images(Structure):
    """Images of bytes for the first layer, and the indices of those to use."""

    _fields_ = _fields("bytes rows", "count height width in_planes")


class Convolution(Structure):
    """A convolution with the gradients of its parameters and its outputs."""

    _fields_ = _fields("weight bias d_weight d_bias output", "filters size step")


class Convolutions(Structure):
    """Images, and the convolutions that they pass through."""

    _fields_ = _fields("images rows layers d_output", "count height width channels n_layers")


def as_array(layers: Sequence[Structure]) -> ctypes.Array:
    """Return layers of the same kind as one contiguous array, to which a pointer to the first gives access."""
    array = (type(layers[0]) * len(layers))(*layers)
    array.kept = layers  # type: ignore[attr-defined]
    return array


class _Field(ctypes.Structure):
    """A field of a structure, as the library describes it."""

    _fields_ = [("structure", ctypes.c_char_p), ("name", ctypes.c_char_p), ("offset", COUNT), ("kind", COUNT)]


KINDS = (POINTER, COUNT, NUMBER)
# The offset and the kind of each field by name; and under no name the size.
Layout = dict[str, tuple[int, int]]
Layouts = dict[str, Layout]


def layouts() -> Layouts:
    """Return the layouts of the structures in this file by their names."""
    return {cls.__name__: layout_of(cls) for cls in Structure.__subclasses__() if cls.__module__ == __name__}


def layout_of(structure: type[Structure]) -> Layout:
    """Return the layout of a structure."""
    fields: Any = structure._fields_
    layout = {name: (getattr(structure, name).offset, KINDS.index(kind)) for name, kind in fields}
    return {**layout, "": (ctypes.sizeof(structure), len(KINDS))}


def layouts_of(functions: ctypes.CDLL) -> Layouts:
    """Return the layouts of the structures that a library was compiled with."""
    found: Layouts = {}
    for field in _fields_of(functions):
        structure = field.structure.decode().split("<")[0]  # Without the type of the numbers.
        found.setdefault(structure, {})[field.name.decode()] = field.offset, field.kind
    return found


def _fields_of(functions: ctypes.CDLL) -> Iterator[Any]:
    described: Any = functions.ppo_layouts
    described.restype = ctypes.POINTER(_Field)
    fields, i = described(), 0
    while fields[i].structure is not None:
        yield fields[i]
        i += 1
