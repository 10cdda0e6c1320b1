"""Functions in Python that the library calls during a pass."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th

from sb3_ppo_variants.backends.native import structures
from sb3_ppo_variants.objectives import ArrayObjective, Batch, gradient_of
from sb3_ppo_variants.processes import Processes


class Calls:
    """Functions in a form that the library can call. Keep this object alive while the library makes passes.

    Exceptions cannot propagate through the library, not even that of an interrupt which arrives before a function has
    begun. A function therefore reports its success in the outcome, as the last thing that it does.

    :param outcome: the outcome of the descent
    """

    def __init__(self, outcome: structures.Outcome):
        self._outcome = outcome
        self._made: list[Any] = []
        # The initial value stands for an interrupt that arrives before a function has begun.
        self._error: BaseException = KeyboardInterrupt()

    def address(self, function: Callable[..., object], *types: Any) -> int | None:
        """Return the address of a function for the library.

        :param types: the types of its arguments
        """

        def call(*arguments: Any) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._error = error
                return
            self._outcome.answered = 1

        self._made.append(ctypes.CFUNCTYPE(None, *types)(call))
        return ctypes.cast(self._made[-1], ctypes.c_void_p).value

    def check(self) -> None:
        """Raise the error that ended the pass, if a function failed."""
        if not self._outcome.answered:
            raise self._error


class Averages:
    """Averages over the processes that train together.

    :param processes: the processes
    :param gradient: the gradient, which is averaged in place
    """

    def __init__(self, processes: Processes, gradient: np.ndarray):
        self._processes = processes
        self._gradient = th.from_numpy(gradient)
        self.approx_kl = 0.0
        """The last approximate KL that was averaged."""

    def addresses(self, calls: Calls) -> list[int | None]:
        """Return the functions that average the approximate KL and the gradient, or null where they are not needed."""
        if self._processes.size == 1:
            return [None, None]
        return [
            calls.address(self._average_kl, ctypes.POINTER(structures.NUMBER)),
            calls.address(self._average_gradient),
        ]

    def _average_kl(self, approx_kl: Any) -> None:
        self.approx_kl = approx_kl[0] = self._processes.mean(approx_kl[0])

    def _average_gradient(self) -> None:
        self._processes.average(self._gradient)


class OwnObjective:
    """Evaluates the gradient of a user's objective in Python.

    :param objective: the objective
    :param rows: the most rows of a minibatch
    :param dtype: the type of its numbers
    """

    def __init__(self, objective: ArrayObjective, rows: int, dtype: np.dtype):
        self._objective = objective
        self._log_ratio, self._advantages, self._losses, self._d_log_ratio = np.zeros((4, rows), dtype)
        self._kl: np.ndarray | None = np.zeros(rows, dtype) if objective.needs_kl else None
        self._d_kl: np.ndarray | None = np.zeros(rows, dtype) if objective.needs_kl else None

    def structure(self, calls: Calls) -> structures.Objective:
        """Return the objective in the form that the library takes."""
        arrays = (self._log_ratio, self._advantages, self._kl, self._losses, self._d_log_ratio, self._d_kl)
        return structures.Objective(*arrays, calls.address(self._evaluate, structures.COUNT))

    def _evaluate(self, rows: int) -> None:
        kl = None if self._kl is None else self._kl[:rows]
        batch = Batch(np.exp(self._log_ratio[:rows]), self._advantages[:rows], kl)
        self._losses[:rows], self._d_log_ratio[:rows], d_kl = gradient_of(self._objective, batch)
        if self._d_kl is not None:
            self._d_kl[:rows] = 0.0 if d_kl is None else d_kl
