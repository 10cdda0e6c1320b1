"""Values and errors on command lines."""

import argparse
import ast
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sb3_ppo_variants.errors import ArgumentError, installation


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """End the program with the message alone if an argument or a file is at fault, or a package is missing."""
    try:
        yield
    except (ArgumentError, OSError) as error:
        raise SystemExit(str(error)) from error
    except ModuleNotFoundError as error:
        raise SystemExit(f"this command needs more packages ({error}): {installation('benchmark')}") from error


def whole_number(text: str) -> int:
    """Read a whole number, however it is written: ``100000``, ``100_000`` or ``1e5``. It is a ``type`` for options."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 100000, 100_000 or 1e5")
    return int(number)


def read_call(
    text: str, read_argument: Callable[[ast.expr], object] = ast.literal_eval
) -> tuple[str, list[Any], dict[str, Any]]:
    """Read the name, the arguments and the keyword arguments of a call such as ``SPO(0.2)``, or of a name alone.

    :raises ValueError: (or ``SyntaxError``) if the text has another form
    """
    match ast.parse(text.strip(), mode="eval").body:
        case ast.Name(name):
            return name, [], {}
        case ast.Call(ast.Name(name), args, keywords):
            given = {str(keyword.arg): read_argument(keyword.value) for keyword in keywords if keyword.arg}
            if len(given) == len(keywords):
                return name, [read_argument(value) for value in args], given
    raise ValueError(f"{text!r} is not a call with arguments")
