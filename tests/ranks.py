"""Runs functions in processes that train together."""

import multiprocessing
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch as th
import torch.distributed as dist

TIMEOUT = timedelta(seconds=120)


def _rank(function: Callable[..., Any], rank: int, size: int, store: str, timeout: timedelta, results: Any, *args: Any) -> None:
    th.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
    try:
        results.put((rank, function(*args)))
    except BaseException as error:
        results.put((rank, error))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def together(function: Callable[..., Any], size: int, *args: Any, timeout: timedelta = TIMEOUT) -> list[Any]:
    """What a function of a module returns, or the error that it raises, in each of ``size`` processes."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        ranks = [
            context.Process(target=_rank, args=(function, rank, size, store, timeout, results, *args), daemon=True)
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        answers = dict(results.get(timeout=300) for _ in range(size))
        for process in ranks:
            process.join(60)
    return [answers[rank] for rank in range(size)]
