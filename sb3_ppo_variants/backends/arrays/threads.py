"""How many threads the products of small matrices take."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial

from stable_baselines3.common.policies import ActorCriticPolicy
from threadpoolctl import ThreadpoolController

# In multiplications. OpenBLAS begins to use threads at the first; only well above the second do they earn what it costs
# to wake them, and on busy cores they never do.
THREADS_BEGIN = 2**18
THREADS_PAY = 2**28


def blas_threads(policy: ActorCriticPolicy, rows: int) -> Callable[[], AbstractContextManager]:
    """Makes contexts in which BLAS takes one thread, if that is better for a policy's networks on so many rows."""
    multiplications = rows * max(parameter.numel() for parameter in policy.parameters())
    if THREADS_BEGIN < multiplications <= THREADS_PAY:
        return partial(_blas().limit, limits=1)
    return nullcontext


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
