"""How actions are laid out: as rows of numbers in policies and buffers, and as the environments take them.

The actions of most spaces are arrays in both places. Those of a hybrid space, a ``Dict`` or ``Tuple`` of other spaces,
become rows of numbers, with the columns of one part after those of another. Whatever hands actions to environments or
users asks :class:`HybridLayout`, so nothing else knows the difference.

:func:`parts_of` and :func:`map_parts` take spaces, observations and actions apart, whatever their structure.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from gymnasium import spaces

from sb3_ppo_variants.errors import ArgumentError

# A space with any elements, and several of its elements, in an array or a list.
AnySpace: TypeAlias = spaces.Space[Any]
Actions: TypeAlias = Any
# The keys and indices that lead from a space to one of its parts.
Path: TypeAlias = tuple[str | int, ...]
HybridSpace: TypeAlias = spaces.Dict | spaces.Tuple[Any]


def is_hybrid(space: AnySpace) -> TypeGuard[HybridSpace]:
    """Whether a space consists of other spaces."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def parts_of(whole: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Find the undivided parts of a space, a dict or a tuple, each with its path. Others consist of themselves."""
    structure = structure_of(whole)
    if not isinstance(structure, dict | tuple):
        yield path, structure
        return
    for key, part in structure.items() if isinstance(structure, dict) else enumerate(structure):
        yield from parts_of(part, (*path, key))


def structure_of(space: AnySpace) -> object:
    """Convert a space to a dict or a tuple of its parts, if it has any, and so on."""
    if isinstance(space, spaces.Dict):
        return {key: structure_of(part) for key, part in space.spaces.items()}
    return tuple(map(structure_of, space.spaces)) if isinstance(space, spaces.Tuple) else space


def map_parts(function: Callable[..., Any], *wholes: Any) -> Any:
    """Apply a function to the parts of dicts, tuples or single values, and arrange the results in the same way.

    :param wholes: dicts, tuples or single values of the same structure
    """
    first = wholes[0]
    if isinstance(first, dict):
        return {key: map_parts(function, *[whole[key] for whole in wholes]) for key in first}
    if isinstance(first, tuple):
        return tuple([map_parts(function, *parts) for parts in zip(*wholes, strict=True)])
    return function(*wholes)


@dataclass(frozen=True)
class Part:
    """An undivided part of a hybrid space.

    :param name: its keys and indices, joined by dots, such as ``"move.force"``
    :param space: its space
    :param columns: where it is in rows
    :param bounded: whether rows have continuous actions in [-1, 1], to be scaled to the bounds of the space
    """

    name: str
    space: AnySpace
    columns: slice
    bounded: bool = False

    @property
    def flat(self) -> AnySpace:
        """The space with one dimension, which is the space of the distribution."""
        match self.space:
            case spaces.MultiDiscrete():
                return spaces.MultiDiscrete(self.space.nvec.ravel())
            case spaces.MultiBinary():
                return spaces.MultiBinary(size_of(self.space))
        return self.space

    def take(self, rows: np.ndarray) -> Actions:
        """Take the part of each row as an element of the space: scaled to its bounds or clipped, if continuous."""
        numbers = rows[:, self.columns].reshape(len(rows), *(self.space.shape or ()))
        if not isinstance(self.space, spaces.Box):
            start = getattr(self.space, "start", 0)
            return (numbers.astype(self.space.dtype) + start).astype(self.space.dtype, copy=False)
        (low, high), is_integer = float_bounds(self.space), np.issubdtype(self.space.dtype, np.integer)
        if self.bounded:
            numbers = low + 0.5 * (numbers + 1.0) * (high - low)
        if is_integer or self.space.dtype.itemsize > numbers.itemsize:
            numbers = numbers.astype(np.float64)
        clipped = np.clip(numbers, low, high)
        elements = (np.rint(clipped) if is_integer else clipped).astype(self.space.dtype)
        # A row of an array without dimensions is a number, which is no element of a Box.
        return elements if self.space.shape else [np.asarray(element) for element in elements]


def float_bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds as floats: the difference of integers may exceed their type, and would wrap."""
    is_integer = np.issubdtype(space.dtype, np.integer)
    return (space.low.astype(float), space.high.astype(float)) if is_integer else (space.low, space.high)


def size_of(space: AnySpace) -> int:
    """Count the numbers in an element of an undivided space."""
    return int(np.prod(space.shape or ()))


class HybridLayout:
    """The layout of a ``Dict`` or ``Tuple`` space, whose rows have the columns of one part after those of another.

    Rows are not clipped and begin at 0, as the distributions of the parts draw them. Environments get elements of the
    space: continuous parts clipped to its bounds or scaled to them, integers in a ``Box`` rounded, discrete ones with
    their ``start``.

    :param space: the action space of an environment
    :param bounded: the names of continuous parts of which rows have numbers in [-1, 1]
    :raises ArgumentError: if two parts have the same name
    """

    def __init__(self, space: HybridSpace, bounded: Collection[str] = ()):
        self.space = space
        self._structure = structure_of(space)
        paths, found = zip(*parts_of(space), strict=True)
        ends = np.cumsum([size_of(part) for part in found]).tolist()
        names = [".".join(map(str, path)) for path in paths]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ArgumentError(f"action_space={space} has several parts named {twice[0]!r}: rename their keys")
        self.parts = [
            Part(name, part, slice(end - size_of(part), end), name in bounded)
            for name, part, end in zip(names, found, ends, strict=True)
        ]
        """The parts in the order of their columns."""
        self.rows = spaces.Box(-np.inf, np.inf, (ends[-1],), np.float32)
        """The space of rows."""

    def for_envs(self, rows: np.ndarray) -> Actions:
        """Return the actions of environments, each as an element of the space.

        :param rows: one row per environment, shape ``(n_envs, n_columns)``
        """
        of_envs = (iter(elements) for elements in zip(*(part.take(rows) for part in self.parts), strict=True))
        return [map_parts(lambda _, parts=parts: next(parts), self._structure) for parts in of_envs]


def space_of_rows(space: AnySpace) -> AnySpace:
    """Return the space of the actions in policies and buffers."""
    if is_hybrid(space):
        return HybridLayout(space).rows
    # Policies draw fractions for a Box of integers too, which a buffer of integers would cut off.
    is_integer = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer)
    return spaces.Box(-np.inf, np.inf, space.shape, np.float32) if is_integer else space
