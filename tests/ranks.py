"""Runs functions in processes that train together."""

import queue
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fresh import FRESH, as_new

TIMEOUT = timedelta(minutes=5)


def _rank(
    function: Callable[..., Any], rank: int, size: int, address: str, timeout: timedelta, results: Any, *args: Any
) -> None:
    as_new()
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=timeout)
    try:
        results.put((rank, function(*args)))
    except BaseException as error:
        results.put((rank, error))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def together(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    timeout: timedelta = TIMEOUT,
    lost: int = 0,
    address: str | None = None,
) -> list[Any]:
    """Call a function in ``size`` processes, and return the result or error of each.

    :param function: a function at the top level of a module
    :param timeout: timeout of the process group
    :param lost: number of processes that will not answer; their results are ``None``
    :param address: where the processes meet; ``None`` for a file, which outlives all of them
    """
    results = FRESH.Queue()
    answers: dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        met_at = address or f"file://{Path(folder, 'store')}"
        ranks = [
            FRESH.Process(target=_rank, args=(function, rank, size, met_at, timeout, results, *args))
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        try:
            while len(answers) < size - lost:
                rank, answer = results.get(timeout=300)
                answers[rank] = answer
        except queue.Empty:
            raise AssertionError(f"only the ranks {sorted(answers)} of {size} have answered") from None
        finally:
            for rank, process in enumerate(ranks):
                if rank in answers:
                    process.join(60)
                process.kill()
                process.join()
    return [answers.get(rank) for rank in range(size)]


def answers(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Call a function in ``size`` processes, and return the result of each. Raise an error if one fails."""
    found = together(function, size, *args)
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return found
