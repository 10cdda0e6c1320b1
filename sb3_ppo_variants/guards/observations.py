"""Checks that observations are in their space. The bounds of a ``Box`` are not checked."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from sb3_ppo_variants.guards.finite import is_finite
from sb3_ppo_variants.guards.watch import Watch

INTEGERS = frozenset({int, np.int64})
# Maximum number of characters of a value in a message.
MOST_SHOWN = 500


class ArrayCheck:
    """Checks observations of a space without nested spaces; see :func:`observation_check`."""

    def __init__(self, space: spaces.Space, watch: Watch, n_envs: int):
        assert space.shape is not None and space.dtype is not None
        self._watch = watch
        self._shape = (n_envs, *space.shape) if n_envs else space.shape
        self._dtype = np.dtype(space.dtype)
        # Discrete observations are plain numbers.
        self._scalars = INTEGERS if self._shape == () else frozenset()
        self._limits = _Limits.of(space)

    def fitted(self, observation: object, quantity: str, env_index: int | None) -> Any:
        """Convert an observation to a form that NumPy can write unchanged to an array of the space.

        :param env_index: index of the environment that returned it; ``None`` for the stacked observations of all
        :raises EnvOutputError: if its type, shape or keys do not match the space
        """
        if type(observation) is np.ndarray and observation.dtype is self._dtype and observation.shape == self._shape:
            return observation
        if type(observation) in self._scalars:
            return observation
        array = as_real_array(observation)
        if array is None:
            self._watch.refuse(quantity, shown(observation), f"a {self._dtype} array of shape {self._shape}", env_index)
        if array.shape != self._shape:
            self._watch.refuse(quantity, f"an array of shape {array.shape}", f"of shape {self._shape}", env_index)
        fitted = _cast(array, self._dtype)
        if fitted is None:
            self._watch.refuse(quantity, shown(observation), f"representable as {self._dtype}", env_index)
        return fitted

    def check_numbers(self, observation: Any, quantity: str, env_index: int | None) -> None:
        """Check the numbers in an observation that :meth:`fitted` returned.

        :raises NonFiniteError: if a number is NaN or infinite
        :raises EnvOutputError: if an integer is not in the space
        """
        array = np.asarray(observation)
        if array.dtype.kind == "f":
            if array.dtype != self._dtype:
                with np.errstate(over="ignore"):  # Numbers too large for the space's dtype become infinite.
                    array = array.astype(self._dtype)
            if not is_finite(array):
                self._name_wrong(np.isfinite(array), array, quantity, env_index)
        elif self._limits is not None and not self._limits.surely_hold(array):
            self._name_wrong(self._limits.hold(array), array, quantity, env_index)

    def _name_wrong(self, right: np.ndarray, array: np.ndarray, quantity: str, env_index: int | None) -> None:
        """:raises GuardError: for the first wrong number, if there is one"""
        if right.all():
            return
        where = np.unravel_index(int(np.argmin(right)), right.shape)
        if env_index is None:
            env_index = int(where[0])
        if array.dtype.kind == "f":
            self._watch.refuse_number(quantity, array, env_index)
        self._watch.refuse(quantity, str(array), str(self._limits), env_index)


class Unchecked:
    """Accepts all observations; see :func:`observation_check`."""

    def fitted(self, observation: object, quantity: str, env_index: int | None) -> Any:
        """Return the observation."""
        return observation

    def check_numbers(self, observation: Any, quantity: str, env_index: int | None) -> None:
        """Accept the observation."""


class DictCheck:
    """Checks observations of a ``Dict`` space; see :func:`observation_check`.

    :param parts: the spaces by their keys
    """

    def __init__(self, parts: Mapping[Any, spaces.Space], watch: Watch, n_envs: int):
        self._watch = watch
        self._checks = {key: _array_check(part, watch, n_envs) for key, part in parts.items()}

    def fitted(self, observation: object, quantity: str, env_index: int | None) -> Any:
        """See :class:`ArrayCheck`."""
        if not isinstance(observation, dict) or observation.keys() != self._checks.keys():
            found = f"a dict with the keys {[*observation]}" if isinstance(observation, dict) else shown(observation)
            self._watch.refuse(quantity, found, f"a dict with the keys {[*self._checks]}", env_index)
        return {
            key: check.fitted(observation[key], f"{quantity}[{key!r}]", env_index)
            for key, check in self._checks.items()
        }

    def check_numbers(self, observation: Any, quantity: str, env_index: int | None) -> None:
        """See :class:`ArrayCheck`."""
        for key, check in self._checks.items():
            check.check_numbers(observation[key], f"{quantity}[{key!r}]", env_index)


class TupleCheck(DictCheck):
    """Checks observations of a ``Tuple`` space; see :func:`observation_check`."""

    def fitted(self, observation: object, quantity: str, env_index: int | None) -> Any:
        """See :class:`ArrayCheck`."""
        if not isinstance(observation, tuple | list) or len(observation) != len(self._checks):
            self._watch.refuse(quantity, shown(observation), f"a tuple of length {len(self._checks)}", env_index)
        return tuple(
            check.fitted(part, f"{quantity}[{i}]", env_index)
            for (i, check), part in zip(self._checks.items(), observation, strict=True)
        )


ObservationCheck: TypeAlias = ArrayCheck | DictCheck | Unchecked


def observation_check(space: spaces.Space, watch: Watch, n_envs: int = 0) -> ObservationCheck:
    """Create the check of a space of arrays or numbers, or of a ``Dict`` or ``Tuple`` of such spaces.

    Observations of other spaces, such as ``Text`` and spaces that are nested more deeply, are not checked. Policies
    need wrappers for them.

    :param n_envs: number of environments whose observations are stacked; 0 for unstacked observations of one
    """
    if isinstance(space, spaces.Dict):
        return DictCheck(space.spaces, watch, n_envs)
    if isinstance(space, spaces.Tuple):
        return TupleCheck(dict(enumerate(space.spaces)), watch, n_envs)
    return _array_check(space, watch, n_envs)


def _array_check(space: spaces.Space, watch: Watch, n_envs: int) -> ArrayCheck | Unchecked:
    return Unchecked() if space.shape is None or space.dtype is None else ArrayCheck(space, watch, n_envs)


def shown(value: object) -> str:
    """Format any value for a message, shortened if it is too long."""
    try:
        text = repr(value)
    except Exception:  # For example, for an integer of more than 4300 digits.
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def as_real_array(value: object) -> np.ndarray | None:
    """Return the value as an array of real numbers, or ``None`` if it cannot be converted to one."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array if array.dtype.kind in "biuf" else None


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Cast an array to a type of integers, or return ``None`` if this changes a value; return it for other types."""
    if dtype.kind == "f":
        return array
    with np.errstate(invalid="ignore"):  # Floats may be too large for the type, or NaN.
        cast = array.astype(dtype)
    return cast if np.array_equal(cast, array) else None


class _Limits:
    """The range of a space of integers: the smallest integer, and the largest plus one."""

    def __init__(self, low: Any, high: Any):
        self._low, self._high = low, high
        self._inner = int(np.max(low)), int(np.min(high))

    @classmethod
    def of(cls, space: spaces.Space) -> "_Limits | None":
        """Return the range of a space, or ``None`` for a ``Box``."""
        if isinstance(space, spaces.Discrete):
            return cls(space.start, space.start + space.n)
        if isinstance(space, spaces.MultiDiscrete):
            return cls(space.start, space.start + space.nvec)
        return cls(0, 2) if isinstance(space, spaces.MultiBinary) else None

    def surely_hold(self, array: np.ndarray) -> bool:
        """Return whether all numbers are in every range. For few numbers, comparing lists is faster than arrays."""
        numbers = array.ravel().tolist()
        low, high = self._inner
        return low <= min(numbers) and max(numbers) < high

    def hold(self, array: np.ndarray) -> np.ndarray:
        """Return for each number whether it is in its range."""
        return np.asarray((self._low <= array) & (array < self._high))

    def __str__(self) -> str:
        return f"between {self._low} and {self._high - 1}"
