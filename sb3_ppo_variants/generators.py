"""The states of the global random generators."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch as th

from sb3_ppo_variants.arguments import Values


def get_random_state() -> Values:
    """Get the states of the generators of Python, NumPy and PyTorch on the CPU and each GPU, as plain values."""
    cuda = th.cuda.get_rng_state_all() if th.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": th.get_rng_state().numpy(),
        "cuda": [of_gpu.numpy() for of_gpu in cuda],
    }


def set_random_state(state: Values) -> None:
    """Set the generators to what :func:`get_random_state` returned, and warn if there are fewer GPUs now."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    th.set_rng_state(th.from_numpy(state["torch"]))
    for index, of_gpu in enumerate(state["cuda"]):
        if index >= th.cuda.device_count():
            warnings.warn(f"There is no cuda:{index}, so its random state is not restored and the run will differ.")
            break
        th.cuda.set_rng_state(th.from_numpy(of_gpu), index)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the generators when the context ends, whatever has seeded them or drawn from them."""
    state = get_random_state()
    try:
        yield
    finally:
        set_random_state(state)
