"""Calls of the library in as many threads as PyTorch uses."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch as th

Result = TypeVar("Result")

# With fewer images, starting a thread takes longer than it saves.
FEWEST = 4


def parts_of(n_images: int) -> list[slice]:
    """Divide images into parts of about the same size, at most one for each thread of PyTorch."""
    n_parts = max(min(th.get_num_threads(), n_images // FEWEST), 1)
    return [slice(start, end) for start, end in pairwise(np.linspace(0, n_images, n_parts + 1).astype(int).tolist())]


def in_parallel(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Make all calls, each in a thread of its own and the first in this one, and return their results."""
    first, *others = calls
    futures = [_threads(len(others)).submit(call) for call in others]
    return [first(), *(future.result() for future in futures)]


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="sb3_ppo_variants")


if hasattr(os, "register_at_fork"):  # Not on Windows.
    # The threads do not exist in a forked process.
    os.register_at_fork(after_in_child=_threads.cache_clear)
