"""Callbacks with which the library averages over the processes that train together."""

import ctypes
from typing import Any

import numpy as np
import torch as th

from sb3_ppo_variants.backends.native.structures import COUNT, NUMBER
from sb3_ppo_variants.processes import Processes


class Together:
    """The averaging callbacks. Keep this object alive while the library makes passes.

    :param processes: the processes that train together
    :param gradient: the gradient, which is averaged in place
    """

    def __init__(self, processes: Processes, gradient: np.ndarray):
        self._processes = processes
        self._gradient = th.from_numpy(gradient)
        # The initial value stands for an interrupt that arrives before a callback has begun.
        self.error: BaseException = KeyboardInterrupt()
        """The error that ended the passes, if a callback failed. Exceptions cannot propagate through the library."""
        self.approx_kl = 0.0
        """The last approximate KL that was averaged."""
        self._functions = (
            ctypes.CFUNCTYPE(COUNT, ctypes.POINTER(NUMBER))(self._average_kl),
            ctypes.CFUNCTYPE(COUNT)(self._average_gradient),
        )

    @property
    def addresses(self) -> list[int | None]:
        """The addresses of the callbacks: the one that averages the approximate KL, then the one for the gradient."""
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
