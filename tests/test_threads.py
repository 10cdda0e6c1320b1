"""BLAS has one thread limit for the whole process, which models in several threads share."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from sb3_ppo_variants.backends.arrays.threads import blas_threads

N_THREADS = 2


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    with threadpool_limits(N_THREADS, user_api="blas"):
        pass
    yield


def threads_now() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def one_thread() -> Callable[[], AbstractContextManager]:
    """Return a function that creates a backend's context for a network that BLAS should compute with one thread."""
    return blas_threads(weights=128 * 128, rows=512)


@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_two_threads_that_overlap(one_thread: Callable[[], AbstractContextManager], first_leaves_first: bool) -> None:
    before = threads_now()
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        stacks = {first: ExitStack(), second: ExitStack()}
        for thread, stack in stacks.items():
            thread.submit(stack.enter_context, one_thread()).result()
            assert threads_now() == {1}
        for thread in (first, second) if first_leaves_first else (second, first):
            thread.submit(stacks[thread].close).result()
        assert threads_now() == before
        # The limit can be set again.
        with one_thread():
            assert threads_now() == {1}
        assert threads_now() == before


def test_a_holder_that_could_not_leave(one_thread: Callable[[], AbstractContextManager]) -> None:
    """An interrupt during the exit has this effect."""
    before = threads_now()
    one_thread().__enter__()
    assert threads_now() == {1}
    with one_thread():
        pass
    assert threads_now() == before
