"""Memory that stays with the process during rollouts and updates.

glibc asks the system for each large block and gives it back as soon as it is free, so that every minibatch of images
touches its pages anew: thousands of page faults, each of which has the system clear a page.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# The names of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# In bytes. The first is above all blocks; versions of glibc that refuse it take the second, the most it adjusts to.
KEPT, LARGEST = 2**30, 2**25


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library of this process, if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018
    except (AttributeError, OSError, TypeError):  # Another library, or a system that names it in another way.
        return None
    return library


@contextmanager
def kept() -> Iterator[None]:
    """Within it glibc keeps freed memory for the blocks that come next; with another C library nothing changes.

    Afterwards both thresholds are where glibc's own adjustment ends, which raises them with each large block that is
    freed: setting one turns the adjustment off for good. Above them memory goes back to the system again.
    """
    glibc = _glibc()
    if glibc is None:
        yield
        return
    glibc.mallopt(M_MMAP_THRESHOLD, KEPT) or glibc.mallopt(M_MMAP_THRESHOLD, LARGEST)
    glibc.mallopt(M_TRIM_THRESHOLD, KEPT)
    try:
        yield
    finally:
        glibc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        glibc.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST)
