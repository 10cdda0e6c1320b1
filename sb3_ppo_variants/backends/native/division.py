"""How the updates of the native library are divided among threads."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import torch as th

# Multiplications of a minibatch that are worth a thread, less than a millisecond. Threads wait for each other, longest
# for one that has lost its core to another process, so the work must be long compared to that.
WORTH_A_THREAD = 8_000_000
# A weight takes part in a multiplication forward, and in two backward.
MULTIPLICATIONS = 3
# States in a block: as many as the library computes at a time, so that one thread has no more to add up than before.
BLOCK_ROWS = 128
# Parameters that a thread adds up, or takes Adam's step with, at a time: a fraction of its cache.
RANGE_SIZE = 16_384


class Division(NamedTuple):
    """The fields of ``Pass`` that say how minibatches and parameters are divided, and among how many threads."""

    block_rows: int
    range_size: int
    threads: int = 1


def divide(trained: Mapping[str, np.ndarray], networks: Sequence[Set[str]], rows: int) -> Division:
    """Divide the minibatches of a descent, if they are worth it. Only the number of threads depends on PyTorch's.

    :param trained: the parameters that the descent trains, by name
    :param networks: the names of the parameters of each network that the descent goes back through
    :param rows: states in a minibatch
    """
    size = sum(parameter.size for parameter in trained.values())
    worth = MULTIPLICATIONS * size * rows // WORTH_A_THREAD
    # Threads have a gradient each of what the descent trains, and no place for other gradients.
    if worth < 2 or not all(names <= trained.keys() for names in networks):
        return Division(rows, size)
    tasks = len(networks) * -(-rows // BLOCK_ROWS)
    return Division(BLOCK_ROWS, RANGE_SIZE, max(1, min(th.get_num_threads(), worth, tasks)))
