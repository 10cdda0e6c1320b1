"""Callbacks with which the library averages over the processes that train together."""

import ctypes
from typing import Any

import numpy as np
import torch as th

from sb3_ppo_variants.backends.native.structures import NUMBER, Outcome
from sb3_ppo_variants.processes import Processes


class Together:
    """The averaging callbacks. Keep this object alive while the library makes passes.

    Exceptions cannot propagate through the library, not even that of an interrupt which arrives before a callback has
    begun. A callback therefore reports its success in the outcome, as the last thing it does.

    :param processes: the processes that train together
    :param gradient: the gradient, which is averaged in place
    :param outcome: the outcome of the descent
    """

    def __init__(self, processes: Processes, gradient: np.ndarray, outcome: Outcome):
        self._processes = processes
        self._gradient = th.from_numpy(gradient)
        self._outcome = outcome
        # The initial value stands for an interrupt that arrives before a callback has begun.
        self.error: BaseException = KeyboardInterrupt()
        """The error that ended the pass, if a callback failed."""
        self.approx_kl = 0.0
        """The last approximate KL that was averaged."""
        self._functions = (
            ctypes.CFUNCTYPE(None, ctypes.POINTER(NUMBER))(self._average_kl),
            ctypes.CFUNCTYPE(None)(self._average_gradient),
        )

    @property
    def addresses(self) -> list[int | None]:
        """The addresses of the callbacks: the one that averages the approximate KL, then the one for the gradient."""
        return [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]

    def _average_kl(self, approx_kl: Any) -> None:
        try:
            self.approx_kl = approx_kl[0] = self._processes.mean(approx_kl[0])
        except BaseException as error:
            self.error = error
            return
        self._outcome.averaged = 1

    def _average_gradient(self) -> None:
        try:
            self._processes.average(self._gradient)
        except BaseException as error:
            self.error = error
            return
        self._outcome.averaged = 1
