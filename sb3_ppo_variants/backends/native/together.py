"""What the library calls to average over the processes that train together."""

import ctypes
from typing import Any

import numpy as np
import torch as th

from sb3_ppo_variants.backends.native.structures import COUNT, NUMBER
from sb3_ppo_variants.processes import Processes


class Together:
    """The functions that average, to be kept for as long as the library makes passes.

    :param processes: those that train together
    :param gradient: the gradient, which is averaged in place
    """

    def __init__(self, processes: Processes, gradient: np.ndarray):
        self._processes = processes
        self._gradient = th.from_numpy(gradient)
        # An interrupt may come before a function has begun.
        self.error: BaseException = KeyboardInterrupt()
        """What ended the passes, if a function failed: errors cannot pass through the library."""
        self.approx_kl = 0.0
        """The last one averaged."""
        self._functions = (
            ctypes.CFUNCTYPE(COUNT, ctypes.POINTER(NUMBER))(self._average_kl),
            ctypes.CFUNCTYPE(COUNT)(self._average_gradient),
        )

    @property
    def addresses(self) -> list[int | None]:
        """Of the functions: what averages the approximate KL, and what averages the gradient."""
        return [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]

    def _average_kl(self, approx_kl: Any) -> int:
        try:
            self.approx_kl = approx_kl[0] = self._processes.mean(approx_kl[0])
        except BaseException as error:
            self.error = error
            return 0
        return 1

    def _average_gradient(self) -> int:
        try:
            self._processes.average(self._gradient)
        except BaseException as error:
            self.error = error
            return 0
        return 1
