"""Command lines of several commands, of which only the one that is used is imported, and values on them."""

import argparse
import ast
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from importlib import import_module
from typing import Any, NamedTuple

from sb3_ppo_variants.errors import ArgumentError, installation

# No count has more digits.
MOST_DIGITS = 18


class Command(NamedTuple):
    """One of several commands.

    :param help: what it does, in a sentence
    :param add_options: adds its options to a parser
    :param module: the module whose ``run`` takes the options and returns the exit code
    """

    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    module: str


def run_command(
    prog: str, description: str | None, commands: Mapping[str, Command], arguments: Sequence[str] | None
) -> int:
    """Run the command that a command line names.

    :param prog: how the program is called
    :param commands: the commands by name
    :param arguments: command-line arguments; ``None`` takes ``sys.argv``
    :return: the exit code of the command
    :raises SystemExit: if the command line asks for something that is not allowed, or a package is missing
    """
    _print_any_text()
    try:
        return _run(prog, description, commands, sys.argv[1:] if arguments is None else arguments)
    except ArgumentError as error:
        raise SystemExit(str(error)) from error


def _print_any_text() -> None:
    """Let the output escape characters that its encoding lacks, as in the message of an environment's error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(prog: str, description: str | None, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parsers = parser.add_subparsers(required=True, metavar="command", dest="command")
    try:
        for name, command in commands.items():
            # With abbreviations, --seed 7 would be --seeds 7.
            own = parsers.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
            if name in arguments[:1]:
                command.add_options(own)
        options = parser.parse_args(arguments)
        module = import_module(commands[options.command].module)
    except ModuleNotFoundError as error:
        raise SystemExit(f"this command needs more packages ({error}): {installation('benchmark')}") from error
    code: int = module.run(options)
    return code


def whole_number(text: str) -> int:
    """Read the whole number that a text stands for, however it is written: ``100000``, ``100_000`` or ``1e5``.

    It is a ``type`` for options.

    :raises argparse.ArgumentTypeError: if it is no whole number
    """
    try:
        number = Decimal(text)
        if number.is_finite() and number.adjusted() < MOST_DIGITS and number == number.to_integral_value():
            return int(number)
    except InvalidOperation:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 100000, 100_000 or 1e5")


def read_call(
    text: str, read_argument: Callable[[ast.expr], object] = ast.literal_eval
) -> tuple[str, list[Any], dict[str, Any]]:
    """Read the name, the arguments and the keyword arguments of a call such as ``SPO(0.2)``, or of a name alone.

    :param read_argument: reads an argument; by default, it must be a literal
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
