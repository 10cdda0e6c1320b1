"""Finds out which process of a group has ended, and why."""

import time
from contextlib import suppress

from sb3_ppo_variants.errors import ProcessError

PREFIX = "sb3_ppo_variants"
# How many seconds the remaining processes have to report after the group has broken.
PATIENCE = 5.0


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

    def tell(self, error: BaseException) -> None:
        """Tell the other processes that this process ends with an error, if the store is still there."""
        own = f"rank {self._rank} ended with {type(error).__name__}: {error}"
        with suppress(RuntimeError):
            if not self._is_set("failed"):
                self._set("failed", str(error) if isinstance(error, ProcessError) else own)

    def explain(self) -> str:
        """Describe which process has ended: one that reported its error, or those that do not answer."""
        try:
            self._set(f"here/{self._rank}", "")
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline and not self._is_set("failed"):
                time.sleep(0.05)
            if self._is_set("failed"):
                return self._store.get(f"{PREFIX}/failed").decode()
            gone = [rank for rank in range(self._size) if not self._is_set(f"here/{rank}")]
        except RuntimeError as error:
            return f"the process that holds the group's store is gone, which is rank 0 or torchrun: {error}"
        names = " and ".join(f"rank {rank}" for rank in gone) or "a process that has recovered since"
        return f"{names} ended without reporting an error, or did not answer in time"

    def _set(self, key: str, value: str) -> None:
        self._store.set(f"{PREFIX}/{key}", value)

    def _is_set(self, key: str) -> bool:
        return self._store.check([f"{PREFIX}/{key}"])
