"""Memory that stays with the process during rollouts and updates.

glibc requests each large block from the system and returns it as soon as it is freed, so every minibatch of images
touches new pages. That costs thousands of page faults, and for each of them the system clears a page.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Names and values from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Thresholds in bytes. KEPT is larger than any block. Versions of glibc that reject it accept LARGEST, which is also the
# upper end of glibc's own adjustment.
KEPT, LARGEST = 2**30, 2**25


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library of this process if it is glibc, else ``None``."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018
    except (AttributeError, OSError, TypeError):  # The C library is not glibc, or cannot be opened without a name.
        return None
    return library


@contextmanager
def kept() -> Iterator[None]:
    """Let glibc keep freed memory for later blocks while the context is active. Other C libraries are left alone.

    glibc adjusts both thresholds itself: it raises them when large blocks are freed. Setting one turns this adjustment
    off for good, so on exit both are set to the values where it ends. Blocks above them go back to the system again.
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
