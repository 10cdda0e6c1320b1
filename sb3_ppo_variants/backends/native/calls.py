"""Functions in Python that the native library calls during a pass."""

import ctypes
from collections.abc import Callable
from typing import Any

from sb3_ppo_variants.backends.native import structures


class Calls:
    """Functions in a form that the library can call. Keep this object alive while the library makes passes.

    Exceptions cannot propagate through the library, not even that of an interrupt which arrives before a function has
    begun. A function therefore reports its success in the outcome, as the last thing that it does.

    :param outcome: the outcome of the descent
    """

    def __init__(self, outcome: structures.Outcome):
        self._outcome = outcome
        self._made: list[object] = []
        # The initial value stands for an interrupt that arrives before a function has begun.
        self._error: BaseException = KeyboardInterrupt()

    def address(self, function: Callable[..., object], *types: Any) -> int | None:
        """Return the address of a function for the library.

        :param types: the types of its arguments
        """

        def call(*arguments: object) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._error = error
                return
            self._outcome.answered = 1

        made = ctypes.CFUNCTYPE(None, *types)(call)
        self._made.append(made)
        return ctypes.cast(made, ctypes.c_void_p).value

    def check(self) -> None:
        """Raise the error that ended the pass, if a function failed."""
        if not self._outcome.answered:
            raise self._error
