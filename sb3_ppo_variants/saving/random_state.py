"""The state of the global random generators."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th


@dataclass(frozen=True)
class RandomState:
    """The states of the generators of Python, NumPy and PyTorch on the CPU and each GPU, as plain values and arrays."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: np.ndarray
    cuda: list[np.ndarray]

    @classmethod
    def capture(cls) -> "RandomState":
        """Capture the current states."""
        numpy = np.random.get_state(legacy=False)
        assert isinstance(numpy, dict)
        cuda = th.cuda.get_rng_state_all() if th.cuda.is_initialized() else []
        return cls(random.getstate(), numpy, th.get_rng_state().numpy(), [state.numpy() for state in cuda])

    def restore(self) -> None:
        """Restore these states, and warn if there are fewer GPUs than saved states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        th.set_rng_state(th.from_numpy(self.torch))
        for index, state in enumerate(self.cuda):
            if index >= th.cuda.device_count():
                warnings.warn(f"There is no cuda:{index}, so its random state is not restored and the run will differ.")
                break
            th.cuda.set_rng_state(th.from_numpy(state), index)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the generators on exit to the states that they had on entry."""
    state = RandomState.capture()
    try:
        yield
    finally:
        state.restore()
