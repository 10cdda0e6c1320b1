"""How many threads the products of small matrices take."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

from stable_baselines3.common.policies import ActorCriticPolicy
from threadpoolctl import LibController, ThreadpoolController

# In multiplications. OpenBLAS begins to use threads at the first; only well above the second do they earn what it costs
# to wake them, and on busy cores they never do.
THREADS_BEGIN = 2**18
THREADS_PAY = 2**28


class OneThread:
    """A context in which BLAS takes one thread.

    BLAS has one limit for the whole process. One thread holds it at a time and restores what was before; those that
    enter meanwhile leave it as it is, and may find their products in more threads once it is released.
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
        """Restore the threads, if this thread holds the limit; an interrupt may have cut entering or leaving short."""
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


def blas_threads(policy: ActorCriticPolicy, rows: int) -> Callable[[], AbstractContextManager[None]]:
    """Makes contexts in which BLAS takes one thread, if that is better for a policy's networks on so many rows."""
    multiplications = rows * max(parameter.numel() for parameter in policy.parameters())
    return _one_thread if THREADS_BEGIN < multiplications <= THREADS_PAY else nullcontext


def _one_thread() -> OneThread:
    return ONE_THREAD


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
