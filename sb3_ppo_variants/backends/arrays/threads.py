"""Limits the number of threads for products of small matrices."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

from threadpoolctl import LibController, ThreadpoolController

# Sizes of matrix products, in multiplications. OpenBLAS starts to use threads at the first. Only well above the second
# do threads repay the cost of waking them, and on busy cores they never do.
THREADS_BEGIN = 2**18
THREADS_PAY = 2**28


class OneThread:
    """Limits BLAS to one thread while the context is active.

    BLAS has one limit for the whole process. The first thread to enter holds it, and restores the previous limit when
    it leaves. Threads that enter in the meantime do not touch the limit, so once it is released, BLAS may use several
    threads for their products.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._before: list[tuple[LibController, int]] = []
        self._limit: AbstractContextManager | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._holder is None:
                self._before = [(library, library.get_num_threads()) for library in _blas().lib_controllers]
                self._holder = threading.get_ident()
                self._limit = _blas().limit(limits=1)
                self._limit.__enter__()

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Restore the previous limits if this thread holds the limit, even if entering or leaving was interrupted."""
        with self._lock:
            if self._holder != threading.get_ident():
                return
            if self._limit is not None:
                self._limit.__exit__(None, None, None)
            for library, n_threads in self._before:
                if library.get_num_threads() != n_threads:
                    library.set_num_threads(n_threads)
            self._limit, self._holder = None, None


ONE_THREAD = OneThread()


def blas_threads(weights: int, rows: int) -> Callable[[], AbstractContextManager[None]]:
    """Return a factory of contexts, which limit BLAS to one thread if that is faster.

    :param weights: number of weights in the largest layer
    :param rows: number of rows that the networks process at a time
    """
    multiplications = rows * weights
    return _one_thread if THREADS_BEGIN < multiplications <= THREADS_PAY else nullcontext


def _one_thread() -> OneThread:
    return ONE_THREAD


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
