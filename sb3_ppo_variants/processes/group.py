"""Processes that train one policy together, over the default process group of ``torch.distributed``."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal, TypeVar

import torch as th
import torch.distributed as dist

from sb3_ppo_variants.errors import ArgumentError, ProcessError

Content = TypeVar("Content")


class Processes:
    """The processes that train together: here a single one, which communicates with none."""

    rank: int = 0
    """The rank of this process."""
    size: int = 1
    """The number of processes."""

    def average(self, tensor: th.Tensor) -> None:
        """Replace a tensor with its mean over the processes.

        :raises ProcessError: if the processes cannot communicate, as in all methods here
        """

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        """Gather the tensors of all processes, stacked in the order of their ranks."""
        return tensor[None]

    def exchange(self, what: str, content: Content) -> list[Content]:
        """Exchange the contents that all processes pass, in the order of their ranks.

        :param what: what this process is doing, such as "writes a checkpoint"; must be the same in all processes
        """
        return [content]

    def mean(self, value: float) -> float:
        """Compute the mean of a number over the processes."""
        if self.size == 1:
            return value
        number = th.tensor([value], dtype=th.float64)
        self.average(number)
        return number.item()


ALONE = Processes()


class DistributedProcesses(Processes):
    """The processes of the default process group. Gloo and torchrun notice those that have ended or hang."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def average(self, tensor: th.Tensor) -> None:
        with self._communicating():
            # Gloo adds in the same order on all ranks, so they all get the same bits.
            dist.all_reduce(tensor)
        tensor /= self.size

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        each = [th.empty_like(tensor) for _ in range(self.size)]
        with self._communicating():
            dist.all_gather(each, tensor.contiguous())
        return th.stack(each)

    def exchange(self, what: str, content: Content) -> list[Content]:
        each = [("", content)] * self.size
        with self._communicating():
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
    def _communicating(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ProcessError(
                f"rank {self.rank} cannot communicate with the other processes any more, because one of them has ended "
                f"or did not answer in time: see its own error. Resume all from a checkpoint. PyTorch says: {error}"
            ) from error


def current(data_parallel: bool | Literal["auto"]) -> Processes:
    """Find the processes that train together.

    :param data_parallel: ``"auto"`` uses the process group if one is initialised; True requires a group, and
        initialises it if torchrun started this process; False trains alone
    :raises ArgumentError: if a group is required and there is none, or it has no backend for tensors on CPUs
    """
    if data_parallel is False or (data_parallel == "auto" and not (dist.is_available() and dist.is_initialized())):
        return ALONE
    if not dist.is_available():
        raise ArgumentError("data_parallel=True needs torch.distributed, without which this PyTorch was built")
    if not init_processes():
        raise ArgumentError(
            "data_parallel=True needs a process group: start the script with torchrun, or call "
            "torch.distributed.init_process_group() before you create the model"
        )
    if dist.get_world_size() == 1:
        return ALONE
    if "cpu:" not in (backends := dist.get_backend_config()):
        raise ArgumentError(
            f"data_parallel={data_parallel!r} needs a process group that can exchange tensors on CPUs too, but its "
            f"backends are {backends!r}: call init_processes(), or torch.distributed.init_process_group() with "
            "'cpu:gloo,cuda:nccl' or 'gloo'"
        )
    return DistributedProcesses()


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


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
