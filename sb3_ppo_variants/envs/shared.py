"""Memory that the processes of a ``SafeSubprocVecEnv`` share, so that the numbers of a step need no messages."""

import mmap
import os
from itertools import accumulate
from operator import setitem
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np

from sb3_ppo_variants.layout import AnySpace, map_parts, parts_of, structure_of

# Processors exchange memory in lines of this many bytes, so that arrays which begin at a line disturb no others.
CACHE_LINE = 64
NUMBER_KINDS = "biuf"  # of NumPy's types: numbers


class StepNumbers(NamedTuple):
    """What some environments returned for a step, stacked, or the types of these arrays."""

    observations: Any
    rewards: Any
    dones: Any


class Contents(NamedTuple):
    """The types, with their shapes, of what is shared for each environment."""

    actions: np.dtype[Any]
    numbers: StepNumbers


def contents_of(observation_space: AnySpace, action_space: AnySpace) -> Contents | None:
    """Find out what environments with these spaces share; ``None`` if their values have no fixed shape and type."""
    for space in (action_space, *(part for _, part in parts_of(observation_space))):
        if space.shape is None or space.dtype is None or space.dtype.kind not in NUMBER_KINDS:
            return None
    observations = map_parts(_type_of, structure_of(observation_space))
    return Contents(_type_of(action_space), StepNumbers(observations, np.dtype(np.float32), np.dtype(bool)))


def _type_of(space: AnySpace) -> np.dtype[Any]:
    return np.dtype((space.dtype, space.shape))


class Block:
    """Arrays with a row for each environment, in memory that several processes share.

    :param memory: what :func:`open_memory` returned, in this process or in another; it may be closed afterwards
    """

    def __init__(self, memory: int, contents: Contents, n_envs: int):
        shared = mmap.mmap(memory, sum(_sizes(contents, n_envs)))
        offsets = accumulate(_sizes(contents, n_envs), initial=0)
        arrays = map_parts(lambda dtype: np.ndarray(n_envs, dtype, shared, next(offsets)), contents)
        self.actions, (self._observations, self._rewards, self._dones) = arrays

    def takes(self, actions: object) -> bool:
        """Whether the actions are an array of the shape and type of :attr:`actions`."""
        own = self.actions
        return isinstance(actions, np.ndarray) and actions.dtype == own.dtype and actions.shape == own.shape

    def put(self, rows: slice, numbers: StepNumbers) -> None:
        """Write what the environments of some rows returned."""
        self._rewards[rows], self._dones[rows] = numbers.rewards, numbers.dones
        map_parts(lambda array, new: setitem(array, rows, new), self._observations, numbers.observations)

    def take(self) -> StepNumbers:
        """Take a copy of what all environments returned."""
        return StepNumbers(map_parts(np.ndarray.copy, self._observations), self._rewards.copy(), self._dones.copy())


def _sizes(contents: Contents, n_envs: int) -> list[int]:
    """Compute the number of bytes of each array, in whole lines."""
    return [-(-n_envs * dtype.itemsize // CACHE_LINE) * CACHE_LINE for _, dtype in parts_of(contents)]


def open_memory(contents: Contents, n_envs: int) -> int:
    """Open memory for a :class:`Block`.

    The memory has no name, and is freed with the last process that uses it, however that ends. Where possible it is not
    in ``/dev/shm``, which is small in containers.
    """
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create(__name__)
    else:
        with TemporaryFile() as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, sum(_sizes(contents, n_envs)))
    return memory
