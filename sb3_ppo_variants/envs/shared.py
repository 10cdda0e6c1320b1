"""Memory that the processes of a ``SafeSubprocVecEnv`` share, so that the numbers of a step need no messages."""

import mmap
import os
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

# Processors exchange memory in lines of this many bytes, so that arrays which begin at a line disturb no others.
LINE = 64
KINDS = "biuf"  # of NumPy's types: numbers


class Numbers(NamedTuple):
    """What some environments returned for a step, stacked."""

    observations: VecEnvObs
    rewards: np.ndarray
    dones: np.ndarray


class Array(NamedTuple):
    """The part of an array that belongs to one environment."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Contents(NamedTuple):
    """What is shared for each environment."""

    actions: Array
    observations: tuple[Array, ...]
    names: tuple[str, ...] | None
    """Keys of a dictionary, which is empty for a tuple; ``None`` for a single observation."""


def contents_of(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Contents | None:
    """Return what environments with these spaces share; ``None`` if their values have no fixed shape and type."""
    names: tuple[str, ...] | None = None
    observed: list[spaces.Space[Any]] = [observation_space]
    if isinstance(observation_space, spaces.Dict):
        names, observed = tuple(observation_space.spaces), [*observation_space.spaces.values()]
    elif isinstance(observation_space, spaces.Tuple):
        names, observed = (), [*observation_space.spaces]
    arrays = []
    for space in (action_space, *observed):
        if space.shape is None or space.dtype is None or space.dtype.kind not in KINDS:
            return None
        arrays.append(Array(tuple(space.shape), space.dtype))
    return Contents(arrays[0], tuple(arrays[1:]), names)


class Block:
    """Arrays with a row for each environment, in memory that several processes share.

    :param memory: what :func:`open_memory` returned, in this process or in another; it may be closed afterwards
    """

    def __init__(self, memory: int, contents: Contents, n_envs: int):
        arrays, offsets = _places(contents, n_envs)
        shared = mmap.mmap(memory, offsets[-1])
        self.actions, self._rewards, self._dones, *self._observations = [
            np.ndarray((n_envs, *array.shape), array.dtype, shared, offset)
            for array, offset in zip(arrays, offsets, strict=False)
        ]
        self._names = contents.names

    def takes(self, actions: object) -> bool:
        """Whether the actions are an array of the shape and type of :attr:`actions`."""
        own = self.actions
        return isinstance(actions, np.ndarray) and actions.dtype == own.dtype and actions.shape == own.shape

    def put(self, rows: slice, numbers: Numbers) -> None:
        """Write what the environments of some rows returned."""
        self._rewards[rows], self._dones[rows] = numbers.rewards, numbers.dones
        observations: Any = numbers.observations
        if self._names is None:
            observations = [observations]
        elif self._names:
            observations = observations.values()
        for array, values in zip(self._observations, observations, strict=True):
            array[rows] = values

    def take(self) -> Numbers:
        """Return a copy of what all environments returned."""
        copies = [array.copy() for array in self._observations]
        observations: VecEnvObs = copies[0]
        if self._names is not None:
            observations = dict(zip(self._names, copies, strict=True)) if self._names else tuple(copies)
        return Numbers(observations, self._rewards.copy(), self._dones.copy())


def _places(contents: Contents, n_envs: int) -> tuple[Sequence[Array], Sequence[int]]:
    """Return all arrays and their offsets in bytes, followed by the number of bytes."""
    rewards, dones = Array((), np.dtype(np.float32)), Array((), np.dtype(bool))
    arrays = (contents.actions, rewards, dones, *contents.observations)
    sizes = [n_envs * prod(array.shape) * array.dtype.itemsize for array in arrays]
    return arrays, [*accumulate((-(-size // LINE) * LINE for size in sizes), initial=0)]


def open_memory(contents: Contents, n_envs: int) -> int:
    """Return a descriptor of memory for a :class:`Block`.

    The memory has no name, and is freed with the last process that uses it, however that ends. Where possible it is not
    in ``/dev/shm``, which is small in containers.
    """
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create(__name__)
    else:
        with TemporaryFile() as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, _places(contents, n_envs)[1][-1])
    return memory
