"""How many cores there are, and how many of them a step is worth."""

import os
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Waking up a thread and waiting for it costs about a tenth of a millisecond, and more while other processes need its
# core: the step waits for the last thread. It must have more work than that.
SECONDS_WORTH_A_THREAD = 2e-4
REPETITIONS = 20
_LIMIT: ContextVar[int | None] = ContextVar("limit", default=None)


def count_cores() -> int:
    """Count the cores that this process may use: not all in a container, or within :func:`limit_cores`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _LIMIT.get() or cores)


@contextmanager
def limit_cores(cores: int) -> Iterator[None]:
    """Let environments that are created meanwhile use at most so many cores, >= 1, because others need the rest."""
    token = _LIMIT.set(cores)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def threads_worth(seconds: float, most: int) -> int:
    """Estimate in how many threads to do work that takes so long in one, at most one per core.

    :param seconds: seconds of work that can be divided
    :param most: number of parts
    """
    return max(1, min(count_cores(), most, int(seconds / SECONDS_WORTH_A_THREAD)))


def shortest(run: Callable[[], object]) -> float:
    """Find the least seconds of some runs, on which other processes have hardly any influence."""
    return min(timeit.repeat(run, number=1, repeat=REPETITIONS))
