"""The structures of the C interface, as in ``interface.hpp`` and in the same order."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

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
        if not value.flags.c_contiguous:
            raise ValueError("the library takes only contiguous arrays")
        return _address(value)
    return ctypes.addressof(value) if isinstance(value, ctypes.Array) else value


def _address(array: Any) -> int:
    try:
        # Takes a third of the time of array.ctypes, and every rollout and update needs many addresses.
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # The array is read-only or empty.
        return array.ctypes.data


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
