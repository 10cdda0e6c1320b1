"""The errors of this package that several of its parts raise."""

from typing import NoReturn


class ArgumentError(ValueError, AssertionError):
    """An argument has a value that is not allowed.

    It is an ``AssertionError`` too, because that is what SB3 raises for some of the same mistakes.
    """


def refuse(name: str, value: object, allowed: str) -> NoReturn:
    """:raises ArgumentError: always, naming the argument, its value and what is allowed"""
    raise ArgumentError(f"{name}={value!r} is not allowed; allowed: {allowed}")


class DamagedFileError(ValueError, RuntimeError):
    """A saved file is damaged, incomplete, or no file of the class that is asked to load it.

    It is a ``RuntimeError`` too, because that is what PyTorch raises for some of the same faults.

    :param file: the file
    :param part: the part of it that is at fault, such as ``"policy.optimizer"``
    :param fault: what is wrong with that part, such as ``"is missing"``
    """

    def __init__(self, file: str, part: str, fault: str):
        super().__init__(file, part, fault)
        self.file = file
        self.part = part
        self.fault = fault

    def __str__(self) -> str:
        return f"{self.file}: {self.part} {self.fault}"


class PickledValueError(ValueError):
    """A file holds pickled values that ``weights_only=True`` does not unpickle."""
