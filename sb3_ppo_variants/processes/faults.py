"""Finds out which process of a group has ended, and why."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Unanswered
from contextlib import suppress
from multiprocessing.util import Finalize
from threading import Thread
from typing import TypeVar

from sb3_ppo_variants.errors import ProcessError

PREFIX = "sb3_ppo_variants"
# How many seconds the remaining processes have to report after the group has broken, and the store to answer. With a
# short timeout of the group it is a third of that, so that the error comes within twice the timeout.
PATIENCE = 5.0
# How many seconds the process with the store stays after an error, so that the others can read it after their rollout.
STAY = 60.0

Answer = TypeVar("Answer")


class Faults:
    """Messages that processes exchange through the store of their group when the group itself is broken.

    :param rank: rank of this process
    :param size: number of processes
    """

    def __init__(self, rank: int, size: int):
        # A PyTorch without torch.distributed does not have this module, but can train in one process.
        from torch.distributed.distributed_c10d import _get_default_store

        self._rank = rank
        self._size = size
        # The store outlives the group.
        self._store = _get_default_store()
        self._timeout: float = self._store.timeout.total_seconds()  # type: ignore[attr-defined]  # It is not annotated.
        self._patience = min(PATIENCE, self._timeout / 3)
        # torchrun sets this variable if it holds the store. Otherwise PyTorch lets rank 0 do so.
        self._in_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        self._silent = False
        self._gone: list[int] = []

    def tell(self, error: BaseException) -> None:
        """Tell the other processes that this process ends with an error, if the store is still there."""
        own = f"rank {self._rank} ended with {type(error).__name__}: {error}"
        with suppress(RuntimeError, Unanswered):
            if not self._is_set("failed"):
                self._set("failed", str(error) if isinstance(error, ProcessError) else own)
            self._set(f"heard/{self._rank}", "")
            if self._rank == 0 and not self._in_torchrun:
                # Unlike atexit, this also works in processes that multiprocessing has started.
                Finalize(None, self._stay, exitpriority=0)

    def _stay(self) -> None:
        """Wait until all others have heard of the error, because the store ends with this process."""
        deadline = time.monotonic() + min(STAY, self._timeout)
        others = [rank for rank in range(1, self._size) if rank not in self._gone]
        with suppress(RuntimeError, Unanswered):
            while time.monotonic() < deadline and not all(self._is_set(f"heard/{rank}") for rank in others):
                time.sleep(0.05)

    def explain(self, failure: RuntimeError) -> str:
        """Describe which process has ended: one that reported its error, or those that do not answer.

        :param failure: the error of the group in this process
        """
        holder = f"{'torchrun' if self._in_torchrun else 'rank 0'}, which holds the group's store,"
        try:
            self._set(f"here/{self._rank}", str(failure))
            deadline = time.monotonic() + self._patience
            while time.monotonic() < deadline and not self._is_set("failed"):
                time.sleep(0.05)
            if self._is_set("failed"):
                return self._get("failed")
            self._gone = [rank for rank in range(self._size) if not self._is_set(f"here/{rank}")]
            if self._gone:
                names = " and ".join(f"rank {rank}" for rank in self._gone)
                return f"{names} ended without reporting an error, or did not answer in time"
            each = "; ".join(f"rank {rank} says: {self._get(f'here/{rank}')}" for rank in range(self._size))
        except Unanswered:
            return f"{holder} did not answer in time"
        except RuntimeError as error:
            return f"{holder} has ended: {error}"
        return (
            "all processes are there, but they could not exchange data, because one of them was stopped for longer "
            f"than the timeout, or they are doing different things: {each}"
        )

    def _set(self, key: str, value: str) -> None:
        self._ask(lambda: self._store.set(f"{PREFIX}/{key}", value))

    def _is_set(self, key: str) -> bool:
        return self._ask(lambda: self._store.check([f"{PREFIX}/{key}"]))

    def _get(self, key: str) -> str:
        return self._ask(lambda: self._store.get(f"{PREFIX}/{key}")).decode()

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """Ask the store. PyTorch itself would wait without end for a holder that is stopped.

        :raises Unanswered: if it does not answer in time, now or earlier
        """
        if self._silent:
            raise Unanswered
        answer: Future[Answer] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=ask, daemon=True).start()
        try:
            return answer.result(self._patience)
        except Unanswered:
            self._silent = True
            raise
