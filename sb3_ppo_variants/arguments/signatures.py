"""Signatures of the algorithms, which share most of their arguments.

Each algorithm writes its whole signature, which editors and type checkers read. It passes its arguments on by
:func:`given_in`, and documents those that are its own.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)
ENTRY = re.compile(r"^:param (\w+):.*?(?=^:|\Z)", re.DOTALL | re.MULTILINE)


def given_in(local: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor by name, from the ``locals()`` at its beginning."""
    return {name: value for name, value in local.items() if name not in ("self", "__class__")}


def documented_like(other: type) -> Callable[[Class], Class]:
    """Complete the docstring of a class with the arguments that it shares with another one, in its own order.

    :param other: a class that documents them
    """

    def complete(cls: Class) -> Class:
        if cls.__doc__ is None:  # Python runs with -OO.
            return cls
        text = inspect.cleandoc(cls.__doc__) + "\n"
        entries = {**_entries(inspect.getdoc(other) or ""), **_entries(text)}
        names = [name for name in inspect.signature(cls).parameters if name in entries]
        about, raised = ENTRY.sub("", text).split(":raises", 1)
        cls.__doc__ = f"{about}{''.join(entries[name] for name in names)}:raises{raised}"
        return cls

    return complete


def _entries(text: str) -> dict[str, str]:
    return {match[1]: match[0].rstrip("\n") + "\n" for match in ENTRY.finditer(text)}
