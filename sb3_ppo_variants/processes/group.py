"""Processes that train one policy together, over the default process group of ``torch.distributed``.

When a group breaks, its processes find out through its store which of them has ended, and why.
"""

import atexit
import gc
import os
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.util import Finalize
from threading import Thread
from types import FunctionType
from typing import Any, ClassVar, Literal, TypeVar

import torch as th
import torch.distributed as dist

from sb3_ppo_variants.errors import ArgumentError, ProcessError

PREFIX = "sb3_ppo_variants"
# How many seconds the remaining processes have to report after the group has broken, and the store to answer. With a
# short timeout of the group it is a third of that, so that the error comes within twice the timeout.
PATIENCE = 5.0
# How many seconds the process with the store stays after an error, so that the others can read it after their rollout.
STAY = 60.0

Content = TypeVar("Content")
Answer = TypeVar("Answer")


class Processes:
    """The processes that train together: here a single one, which communicates with none."""

    rank: int = 0
    """The rank of this process."""
    size: int = 1
    """The number of processes."""

    def average(self, tensor: th.Tensor) -> None:
        """Replace a tensor with its mean over the processes.

        :raises ProcessError: if a process has ended, as in all methods that communicate
        """

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        """Gather the tensors of all processes, stacked in the order of their ranks."""
        return tensor[None]

    def exchange(self, what: str, content: Content) -> list[Content]:
        """Exchange the contents that all processes pass, in the order of their ranks.

        :param what: what this process is doing, such as "writes a checkpoint"; must be the same in all processes
        """
        return [content]

    def failed(self, error: BaseException) -> None:
        """Leave the group because of an error, and tell the other processes about it."""

    def mean(self, value: float) -> float:
        """Compute the mean of a number over the processes."""
        if self.size == 1:
            return value
        number = th.tensor([value], dtype=th.float64)
        self.average(number)
        return number.item()


ALONE = Processes()


class DistributedProcesses(Processes):
    """The processes of the default process group. An error in one of them raises an error in all of them.

    After an error, this process has left the group. It keeps its rank, but can no longer communicate: otherwise, each
    process would believe that it trains alone, and all would write the same files.
    """

    latest: ClassVar["DistributedProcesses | None"] = None
    """The group that this process has joined last."""

    def __init__(self, world: "dist.ProcessGroup") -> None:
        # A PyTorch without torch.distributed does not have this module, but can train in one process.
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.world = weakref.ref(world)  # PyTorch decides how long the group exists.
        self.has_left = self._has_failed = False
        store = _get_default_store()  # It outlives the group.
        self._store = PrefixStore(PREFIX, store)
        self._timeout: float = store.timeout.total_seconds()  # type: ignore[attr-defined]  # It is not annotated.
        self._patience = min(PATIENCE, self._timeout / 3)
        # torchrun sets this variable if it holds the store. Otherwise PyTorch lets rank 0 do so.
        self._in_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        self._silent = False
        self._gone: list[int] = []

    def average(self, tensor: th.Tensor) -> None:
        with self._together():
            if self.size == 2 and tensor.is_cpu:
                self._add_others(tensor)
            else:
                # Gloo adds in the same order on all ranks, so they all get the same bits.
                dist.all_reduce(tensor)
        tensor /= self.size

    def _add_others(self, tensor: th.Tensor) -> None:
        """Add the tensors of two processes as ``all_reduce`` does, but wake fewer of gloo's threads."""
        other, others = 1 - self.rank, th.empty_like(tensor)
        sending = dist.isend(tensor, other)
        dist.recv(others, other)
        assert sending is not None  # isend() only returns None outside the group.
        sending.wait()
        tensor += others

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        each = [th.empty_like(tensor) for _ in range(self.size)]
        with self._together():
            dist.all_gather(each, tensor.contiguous())
        return th.stack(each)

    def exchange(self, what: str, content: Content) -> list[Content]:
        each = [("", content)] * self.size
        with self._together():
            dist.all_gather_object(each, (what, content))
        moments = [moment for moment, _ in each]
        if len(set(moments)) > 1:
            where = ", ".join(f"rank {rank} {moment}" for rank, moment in enumerate(moments))
            raise ProcessError(
                f"the processes are doing different things: {where}. Pass the same callbacks to all of them, and call "
                "learn() in all of them"
            )
        return [content for _, content in each]

    @contextmanager
    def _together(self) -> Iterator[None]:
        if self.has_left:
            raise ProcessError(
                f"rank {self.rank} has left its group of {self.size} processes after an error: start all processes "
                "anew and resume from a checkpoint, or train alone with data_parallel=False"
            )
        try:
            yield
        except RuntimeError as error:
            self._leave()  # The other processes then do not have to wait for the timeout.
            raise ProcessError(self._explain(error)) from error

    def _leave(self) -> None:
        self.has_left = True
        if dist.is_initialized() and self.world() is dist.group.WORLD:
            _release(dist.group.WORLD)
            _destroy()

    def failed(self, error: BaseException) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        own = f"rank {self.rank} ended with {type(error).__name__}: {error}"
        with suppress(RuntimeError, FutureTimeoutError):
            if not self._ask(self._store.check, ["failed"]):
                self._ask(self._store.set, "failed", str(error) if isinstance(error, ProcessError) else own)
            self._ask(self._store.set, f"heard/{self.rank}", "")
            if self.rank == 0 and not self._in_torchrun:
                # Unlike atexit, this also works in processes that multiprocessing has started.
                Finalize(None, self._stay, exitpriority=0)
        self._leave()

    def _stay(self) -> None:
        """Wait until all others have heard of the error, because the store ends with this process."""
        others = [rank for rank in range(1, self.size) if rank not in self._gone]
        with suppress(RuntimeError, FutureTimeoutError):
            self._wait([f"heard/{rank}" for rank in others], min(STAY, self._timeout))

    def _explain(self, failure: RuntimeError) -> str:
        """Describe which process has ended: one that reported its error, or those that do not answer."""
        holder = f"{'torchrun' if self._in_torchrun else 'rank 0'}, which holds the group's store,"
        try:
            self._ask(self._store.set, f"here/{self.rank}", str(failure))
            if self._wait(["failed"], self._patience):
                return self._ask(self._store.get, "failed").decode()
            self._gone = [rank for rank in range(self.size) if not self._ask(self._store.check, [f"here/{rank}"])]
            if self._gone:
                names = " and ".join(f"rank {rank}" for rank in self._gone)
                return f"{names} ended without reporting an error, or did not answer in time"
            says = [self._ask(self._store.get, f"here/{rank}").decode() for rank in range(self.size)]
            each = "; ".join(f"rank {rank} says: {text}" for rank, text in enumerate(says))
        except FutureTimeoutError:
            return f"{holder} did not answer in time"
        except RuntimeError as error:
            return f"{holder} has ended: {error}"
        return (
            "all processes are running, but could not exchange data. Either one was stopped for longer than the "
            f"timeout, or they do different things: {each}"
        )

    def _wait(self, keys: list[str], seconds: float) -> bool:
        """Wait until the store has all of these keys, and return whether it does."""
        deadline = time.monotonic() + seconds
        while not (has_all := self._ask(self._store.check, keys)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return has_all

    def _ask(self, method: Callable[..., Answer], *arguments: object) -> Answer:
        """Call a method of the store. PyTorch itself would wait without end for a holder that is stopped.

        :raises FutureTimeoutError: if the store does not answer in time, now or earlier
        """
        if self._silent:
            raise FutureTimeoutError
        answer: Future[Answer] = Future()

        def ask() -> None:
            try:
                answer.set_result(method(*arguments))
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=ask, daemon=True).start()
        try:
            return answer.result(self._patience)
        except FutureTimeoutError:
            self._silent = True
            raise


def _release(world: "dist.ProcessGroup | None") -> None:
    """Remove a group from the defaults of functions, or its connections stay open until this process exits.

    The group is the default of an argument in each of PyTorch's modules that is first imported once the group exists.
    """
    for function in gc.get_objects():
        defaults = function.__defaults__ or () if type(function) is FunctionType else ()
        if any(default is world for default in defaults):
            function.__defaults__ = tuple(None if default is world else default for default in defaults)


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def current(data_parallel: bool | Literal["auto"]) -> Processes:
    """Find the processes that train together.

    :param data_parallel: ``"auto"`` uses the process group if one is initialised; True requires a group, and
        initialises it if torchrun started this process; False trains alone
    :raises ArgumentError: if a group is required and there is none, or it has no backend for tensors on CPUs
    """
    if data_parallel is False or (data_parallel == "auto" and not dist.is_available()):
        return ALONE
    if not dist.is_available():
        raise ArgumentError("data_parallel=True needs torch.distributed, without which this PyTorch was built")
    if not dist.is_initialized():
        if DistributedProcesses.latest is not None and DistributedProcesses.latest.has_left:
            return DistributedProcesses.latest
        if data_parallel is True and not init_processes():
            raise ArgumentError(
                "data_parallel=True needs a process group: start the script with torchrun, or call "
                "torch.distributed.init_process_group() before you create the model"
            )
        if data_parallel == "auto":
            return ALONE
    world = dist.group.WORLD
    if world is None or dist.get_world_size() == 1:
        return ALONE
    if DistributedProcesses.latest is None or DistributedProcesses.latest.world() is not world:
        if "cpu:" not in (backends := dist.get_backend_config()):
            raise ArgumentError(
                f"data_parallel={data_parallel!r} needs a process group that can exchange tensors on CPUs too, but its "
                f"backends are {backends!r}: call init_processes(), or torch.distributed.init_process_group() with "
                "'cpu:gloo,cuda:nccl' or 'gloo'"
            )
        DistributedProcesses.latest = DistributedProcesses(world)
    return DistributedProcesses.latest


def _of_attempt(timeout: timedelta) -> dict[str, Any]:
    """Find the arguments with which processes that torchrun has restarted do not read what earlier ones have stored.

    With several nodes, there are none, because each counts its restarts itself.
    """
    attempt, n_nodes = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("GROUP_WORLD_SIZE", "1")
    if attempt == "0" or n_nodes != "1":
        return {}
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    return {"store": dist.PrefixStore(f"sb3_ppo_variants/attempt_{attempt}", store), "rank": rank, "world_size": size}


def init_processes(timeout: timedelta = timedelta(minutes=30)) -> bool:
    """Initialise the process group if torchrun started this process; otherwise do nothing.

    Tensors on CPUs are averaged with gloo, tensors on GPUs with NCCL.

    :param timeout: how long a process waits for the others before it considers them gone
    :return: whether there is a process group
    """
    if not dist.is_available():
        return False
    if not dist.is_initialized() and {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        gpus = th.cuda.is_available() and dist.is_nccl_available()
        if gpus:
            th.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % th.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=timeout, **_of_attempt(timeout))
        atexit.register(_destroy)  # PyTorch may abort a process that exits without leaving its group.
    return dist.is_initialized()
