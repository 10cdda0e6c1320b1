"""Reading SB3's rollout buffers with the row number of every sample.

A rollout of ``n_steps`` steps in ``n_envs`` environments has ``n_steps * n_envs`` rows, environment by environment:
the order in which SB3's buffers flatten themselves when they are first read. Row numbers are what lets a minibatch
find what was remembered for its states.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs, RolloutBufferSamples


def minibatches(buffer: RolloutBuffer, batch_size: int) -> Iterator[tuple[np.ndarray | None, RolloutBufferSamples]]:
    """The minibatches of ``buffer.get(batch_size)``, each with its row numbers.

    The buffer shuffles, so that random numbers are drawn as SB3 draws them and a user's own buffer is respected. Its
    rows are seen where every SB3 buffer gathers them, in ``_get_samples``; they are ``None`` if a user's buffer makes
    its minibatches otherwise.
    """
    gather = buffer._get_samples
    seen: list[np.ndarray] = []

    def gather_and_note(rows: np.ndarray, *args: Any) -> RolloutBufferSamples:
        seen.append(rows)
        return gather(rows, *args)

    vars(buffer)["_get_samples"] = gather_and_note
    try:
        for samples in buffer.get(batch_size):
            yield seen[0] if len(seen) == 1 else None, samples
            seen.clear()
    finally:
        del vars(buffer)["_get_samples"]


def in_rows(buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """One of a buffer's arrays in the order of its rows, whether the buffer has flattened itself or not."""
    return array if buffer.generator_ready else buffer.swap_and_flatten(array)


def rollout_observations(buffer: RolloutBuffer, rows_at_once: int) -> Iterator[PyTorchObs]:
    """All observations of a rollout in the order of their rows, in chunks.

    :param buffer: a full buffer, read before or not
    :param rows_at_once: how many rows a chunk has, the last one maybe fewer
    """
    n_rows = buffer.buffer_size * buffer.n_envs
    for start in range(0, n_rows, rows_at_once):
        rows = np.arange(start, min(start + rows_at_once, n_rows))
        if buffer.generator_ready:
            where: Any = rows
        else:
            where = (rows % buffer.buffer_size, rows // buffer.buffer_size)
        yield _observations_at(buffer, where)


def _observations_at(buffer: RolloutBuffer, where: Any) -> PyTorchObs:
    observations: Any = buffer.observations
    if isinstance(observations, dict):
        return {key: buffer.to_torch(array[where]) for key, array in observations.items()}
    tensor: th.Tensor = buffer.to_torch(observations[where])
    return tensor
