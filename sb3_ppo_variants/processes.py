"""Processes that train one policy together, over the default process group of ``torch.distributed``.

When a group breaks, its processes find out through its store which of them has ended, and why. Their rollouts have
statistics in common, and all that an update depends on must be the same in all of them.
"""

import atexit
import gc
import math
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Unanswered
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import timedelta
from multiprocessing.util import Finalize
from threading import Thread
from types import FunctionType
from typing import ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import torch as th
import torch.distributed as dist
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_ppo_variants.errors import ArgumentError, ProcessError
from sb3_ppo_variants.losses import ADVANTAGE_EPSILON

PREFIX = "sb3_ppo_variants"
# How many seconds the remaining processes have to report after the group has broken, and the store to answer. With a
# short timeout of the group it is a third of that, so that the error comes within twice the timeout.
PATIENCE = 5.0
# How many seconds the process with the store stays after an error, so that the others can read it after their rollout.
STAY = 60.0

Content = TypeVar("Content")
Answer = TypeVar("Answer")


class Processes:
    """A process that trains alone, so that there is nothing to communicate."""

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
        with suppress(RuntimeError, Unanswered):
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
        with suppress(RuntimeError, Unanswered):
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
        except Unanswered:
            return f"{holder} did not answer in time"
        except RuntimeError as error:
            return f"{holder} has ended: {error}"
        return (
            "all processes are there, but they could not exchange data, because one of them was stopped for longer "
            f"than the timeout, or they are doing different things: {each}"
        )

    def _wait(self, keys: list[str], seconds: float) -> bool:
        """Wait until the store has all of these keys, and return whether it does."""
        deadline = time.monotonic() + seconds
        while not (has_all := self._ask(self._store.check, keys)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return has_all

    def _ask(self, method: Callable[..., Answer], *arguments: object) -> Answer:
        """Call a method of the store. PyTorch itself would wait without end for a holder that is stopped.

        :raises Unanswered: if the store does not answer in time, now or earlier
        """
        if self._silent:
            raise Unanswered
        answer: Future[Answer] = Future()

        def ask() -> None:
            try:
                answer.set_result(method(*arguments))
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=ask, daemon=True).start()
        try:
            return answer.result(self._patience)
        except Unanswered:
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


# Statistics, and what the processes must have in common

# The remaining progress at which schedules are compared when training begins.
THROUGHOUT = (1.0, 0.5, 0.0)


def describe(value: object, at: Sequence[float] = THROUGHOUT) -> str:
    """Describe a value with words that are the same in all processes.

    :param at: the remaining progress at which to compare schedules, which are described by their values
    """
    if callable(value) and not isinstance(value, type | th.nn.Module):
        with suppress(Exception):  # It is no schedule, but a function or an object of the user's own.
            values = [np.asarray(value(progress)).item() for progress in at]
            return str(values if len(set(values)) > 1 else values[0])
    if is_dataclass(value) and not isinstance(value, type):  # An objective or updates, which may contain functions.
        parts = [f"{field.name}={describe(getattr(value, field.name), at)}" for field in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    return re.sub(" at 0x[0-9a-fA-F]+", "", str(_sort(value)))


def _sort(value: object) -> object:
    """Replace sets, whose order differs between processes, by sorted lists, and sort dicts; also within lists."""
    if isinstance(value, set | frozenset):
        return sorted(map(_sort, value), key=repr)
    if type(value) is dict:
        return {key: _sort(value[key]) for key in sorted(value, key=repr)}
    if type(value) is tuple:
        return tuple(map(_sort, value))
    return [*map(_sort, value)] if type(value) is list else value


def refuse_differences(each: Sequence[Mapping[str, str]]) -> None:
    """Check that the descriptions of all processes, in the order of their ranks, are the same.

    :raises ArgumentError: if one differs, with its name, the ranks and their values
    """
    for rank, other in enumerate(each):
        for name in {**each[0], **other}:
            first, own = each[0].get(name, "missing"), other.get(name, "missing")
            if first != own:
                raise ArgumentError(
                    f"{name} is {first} in rank 0 and {own} in rank {rank}: all processes must have the same value. If "
                    "a callback sets it, let it do so in all of them"
                )


def normalize_together(advantages: th.Tensor, processes: Processes) -> th.Tensor:
    """Normalise minibatches distributed over processes as :func:`sb3_ppo_variants.losses.normalize_advantages` does.

    :param advantages: the rows of each minibatch in this process, shape ``(..., rows)``
    """
    rows = advantages.shape[-1]
    mean = advantages.mean(dim=-1)
    squares = ((advantages - mean[..., None]) ** 2).sum(dim=-1)
    means, all_squares = processes.gather(th.stack([mean, squares])).unbind(dim=1)
    mean = means.mean(dim=0)
    variance = (all_squares + rows * (means - mean) ** 2).sum(dim=0) / (processes.size * rows - 1)
    return (advantages - mean[..., None]) / (variance.sqrt()[..., None] + ADVANTAGE_EPSILON)


def moments_together(advantages: th.Tensor, processes: Processes) -> tuple[float, float]:
    """Compute the mean of the advantages of all processes, and the divisor: the deviation from it plus an epsilon."""
    mean, variance = mean_and_variance(advantages, processes)
    return mean, math.sqrt(variance) + ADVANTAGE_EPSILON


def mean_and_variance(numbers: th.Tensor, processes: Processes) -> tuple[float, float]:
    """Compute the mean and the variance of the numbers of all processes, each of which has the same number of them."""
    variance, mean = th.var_mean(numbers.double(), correction=0)
    variances, means = processes.gather(th.stack([variance, mean])).unbind(dim=1)
    together = means.mean()
    return together.item(), (variances + (means - together) ** 2).mean().item()


def explained_variance(values: np.ndarray, returns: np.ndarray, processes: Processes) -> float:
    """Compute SB3's ``explained_variance`` for the predictions of all processes, each of which has the same number."""
    expected = th.from_numpy(returns).double()
    _, unexplained = mean_and_variance(expected - th.from_numpy(values), processes)
    _, variance = mean_and_variance(expected, processes)
    return np.nan if variance == 0 else 1 - unexplained / variance


# The statistics of a process by name: those of all its data, and those of the part of it that all processes have in
# common, which are None if they are not known, such as for an environment from elsewhere.
Contribution: TypeAlias = Mapping[str, tuple[RunningMeanStd, RunningMeanStd | None]]


class Statistics:
    """The statistics of a model's ``VecNormalize`` wrappers, and what they were when all processes last had the same.

    What a process has added since is its own data, wherever it comes from: rollouts, resets or callbacks.
    """

    def __init__(self) -> None:
        # Each object is kept together with a copy. If a wrapper has another object, its data is not known.
        self._common: dict[str, tuple[RunningMeanStd, RunningMeanStd]] = {}

    def agree(self, env: VecEnv | None) -> None:
        """Note that all processes have the same statistics now."""
        self._common = {name: (moments, moments.copy()) for name, moments in _get_moments(env).items()}

    def contribution(self, env: VecEnv | None) -> Contribution:
        """Return what this process passes to :meth:`merge` in all processes."""
        own = _get_moments(env)
        are_known = all(name in self._common and self._common[name][0] is moments for name, moments in own.items())
        return {name: (moments, self._common[name][1] if are_known else None) for name, moments in own.items()}

    def merge(self, env: VecEnv | None, each: Sequence[Contribution]) -> None:
        """Set the statistics to those of the data of all processes.

        If the processes have had nothing in common before, they take the statistics of rank 0.

        :param each: the contribution of each process
        :raises ArgumentError: if the processes have different statistics or statistics of different shapes
        """
        refuse_differences([{name: str(np.shape(own.mean)) for name, (own, _) in one.items()} for one in each])
        for name, moments in _get_moments(env).items():
            own, common = zip(*(one[name] for one in each), strict=True)
            before = common[0]
            if before is not None and all(_is_same(one, before) for one in common) and _has_grown(own, before):
                merge_moments(moments, before, own)
            else:
                moments.mean, moments.var, moments.count = own[0].mean, own[0].var, own[0].count
        self.agree(env)


def find_normalizations(env: VecEnv | None) -> list[VecNormalize]:
    """Find the ``VecNormalize`` wrappers of an environment, from the outside in."""
    inner = find_normalizations(env.venv) if isinstance(env, VecEnvWrapper) else []
    return [env, *inner] if isinstance(env, VecNormalize) else inner


def name_wrapper(index: int) -> str:
    """Name a ``VecNormalize`` wrapper for messages, by its index from the outside."""
    return "VecNormalize" if index == 0 else f"VecNormalize number {index + 1}"


def _get_moments(env: VecEnv | None) -> dict[str, RunningMeanStd]:
    found: dict[str, RunningMeanStd] = {}
    for index, wrapper in enumerate(find_normalizations(env)):
        name, observations = name_wrapper(index), getattr(wrapper, "obs_rms", None)
        if isinstance(observations, dict):
            found |= {f"{name}.obs_rms[{key!r}]": moments for key, moments in observations.items()}
        elif observations is not None:
            found[f"{name}.obs_rms"] = observations
        found[f"{name}.ret_rms"] = wrapper.ret_rms
    return found


def _is_same(one: RunningMeanStd | None, other: RunningMeanStd) -> bool:
    return one is not None and all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in ("mean", "var", "count")
    )


def _has_grown(each: Sequence[RunningMeanStd], before: RunningMeanStd) -> bool:
    """Whether there is new data. A smaller count than before belongs to other data."""
    return min(one.count for one in each) >= before.count < max(one.count for one in each)


def merge_moments(moments: RunningMeanStd, before: RunningMeanStd, each: Sequence[RunningMeanStd]) -> None:
    """Set moments to those of the data of all processes, each of which has added data to that of ``before``."""
    # Sum x and x^2 relative to the previous mean, which preserves precision.
    counts = [one.count - before.count for one in each]
    sums = [one.count * (one.mean - before.mean) for one in each]
    squares = [one.count * (one.var + (one.mean - before.mean) ** 2) - before.count * before.var for one in each]
    count = before.count + sum(counts)
    shift = sum(sums) / count
    moments.mean = before.mean + shift
    moments.var = (before.count * before.var + sum(squares)) / count - shift**2
    moments.count = count
