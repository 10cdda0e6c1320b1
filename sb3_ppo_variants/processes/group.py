"""The default process group of ``torch.distributed``."""

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FunctionType
from typing import Any, ClassVar, Literal, NoReturn
from weakref import WeakKeyDictionary

import torch as th
import torch.distributed as dist

from sb3_ppo_variants.errors import ArgumentError, ProcessError
from sb3_ppo_variants.processes.faults import Faults
from sb3_ppo_variants.processes.processes import ALONE, Content, Processes


class Group(Processes):
    """The processes of the default process group. An error in one of them raises an error in all of them."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._faults = Faults(self.rank, self.size)
        Left.latest = None  # The process is in a group again.

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
        each: list[Any] = [None] * self.size
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

    def failed(self, error: BaseException) -> None:
        self._faults.tell(error)
        self._leave()

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self._leave()  # The other processes then do not have to wait for the timeout.
            raise ProcessError(self._faults.explain(error)) from error

    def _leave(self) -> None:
        Left.latest = Left(self.rank, self.size)
        if dist.is_initialized():
            _release(dist.group.WORLD)
        _destroy()


class Left(Processes):
    """A group that this process has left because of an error. The process keeps its rank, but cannot communicate.

    Without this, each process would believe that it trains alone, and all would write the same files.
    """

    latest: ClassVar["Left | None"] = None
    """The group that this process has left last."""

    def __init__(self, rank: int, size: int):
        self.rank = rank
        self.size = size

    def average(self, tensor: th.Tensor) -> None:
        self._refuse()

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        self._refuse()

    def exchange(self, what: str, content: Content) -> list[Content]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ProcessError(
            f"rank {self.rank} has left its group of {self.size} processes after an error: start all processes anew "
            "and resume from a checkpoint, or train alone with data_parallel=False"
        )


# What a process knows about the failures of others belongs to their group. PyTorch decides how long that exists.
GROUPS: "WeakKeyDictionary[dist.ProcessGroup, Group]" = WeakKeyDictionary()


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
    """Return the processes that train together.

    :param data_parallel: ``"auto"`` uses the process group if one is initialised; True requires a group, and
        initialises it if torchrun started this process; False trains alone
    :raises ArgumentError: if a group is required and there is none
    """
    if data_parallel is False:
        return ALONE
    if not dist.is_available():
        if data_parallel is True:
            raise ArgumentError("data_parallel=True needs torch.distributed, without which this PyTorch was built")
        return ALONE
    if not dist.is_initialized():
        if Left.latest is not None:
            return Left.latest
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
    return GROUPS.get(world) or GROUPS.setdefault(world, Group())


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
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=timeout)
        atexit.register(_destroy)  # PyTorch may abort a process that exits without leaving its group.
    return dist.is_initialized()
