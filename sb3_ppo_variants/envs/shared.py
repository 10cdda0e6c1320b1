"""Memory that the processes of a ``SafeSubprocVecEnv`` share, so that the numbers of a step need no messages."""

import mmap
import os
from collections.abc import Sequence
from itertools import accumulate
from tempfile import TemporaryFile
from typing import Any, TypeAlias

import numpy as np

from sb3_ppo_variants.layout import AnySpace, parts_of

# Processors exchange memory in lines of this many bytes, so that arrays which begin at a line disturb no others.
CACHE_LINE = 64
# The types, with their shapes, of what each environment shares: an action, a reward, whether an episode has ended, and
# the parts of an observation.
SharedTypes: TypeAlias = Sequence[np.dtype[Any]]


def shared_types(observation_space: AnySpace, action_space: AnySpace) -> SharedTypes | None:
    """Find out what environments with these spaces share; ``None`` if their values have no fixed shape and type."""
    spaces = [action_space, *(part for _, part in parts_of(observation_space))]
    if any(space.shape is None or space.dtype is None or space.dtype.kind not in "biuf" for space in spaces):
        return None
    action, *observation = [np.dtype((space.dtype, space.shape)) for space in spaces]
    return [action, np.dtype(np.float32), np.dtype(bool), *observation]


class Block:
    """Arrays with a row for each environment, in memory that several processes share.

    :param memory: what :func:`open_memory` returned, in this process or in another; it may be closed afterwards
    """

    def __init__(self, memory: int, types: SharedTypes, n_envs: int):
        sizes = _sizes(types, n_envs)
        shared, offsets = mmap.mmap(memory, sum(sizes)), accumulate(sizes, initial=0)
        arrays = [np.ndarray(n_envs, dtype, shared, offset) for dtype, offset in zip(types, offsets, strict=False)]
        self.actions, *self._results = arrays

    def takes(self, actions: object) -> bool:
        """Whether the actions are an array of the shape and type of :attr:`actions`."""
        own = self.actions
        return isinstance(actions, np.ndarray) and actions.dtype == own.dtype and actions.shape == own.shape

    def put(self, rows: slice, results: Sequence[np.ndarray]) -> None:
        """Write the rewards, ends and parts of observations of some environments."""
        for array, new in zip(self._results, results, strict=True):
            array[rows] = new

    def take(self) -> list[np.ndarray]:
        """Take a copy of what all environments returned."""
        return [array.copy() for array in self._results]


def _sizes(types: SharedTypes, n_envs: int) -> list[int]:
    """Compute the number of bytes of each array, in whole lines."""
    return [-(-n_envs * dtype.itemsize // CACHE_LINE) * CACHE_LINE for dtype in types]


def open_memory(types: SharedTypes, n_envs: int) -> int:
    """Open memory for a :class:`Block`.

    The memory has no name, and is freed with the last process that uses it, however that ends. Where possible it is not
    in ``/dev/shm``, which is small in containers.
    """
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create(__name__)
    else:
        with TemporaryFile() as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, sum(_sizes(types, n_envs)))
    return memory
