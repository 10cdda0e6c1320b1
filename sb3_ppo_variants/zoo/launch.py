"""Runs those scripts of rl_zoo3 in which a function has to be replaced."""

import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from subprocess import call
from types import ModuleType
from typing import Any


def launch(script: str) -> None:
    """Run a script of rl_zoo3 so that the scripts it starts also know this package's algorithms.

    It starts them with ``subprocess.call``, and has no option to change the command.

    :param script: name of the script's module in ``rl_zoo3``
    """
    with replaced(subprocess, "call", call_ours):
        runpy.run_module(f"rl_zoo3.{script}", run_name="__main__")


@contextmanager
def replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Replace a function or another value of a module while the context is active."""
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


def call_ours(command: Sequence[str], *args: Any, **kwargs: Any) -> int:
    """Run a command, replacing scripts of rl_zoo3 with this package's.

    rl_zoo3 runs ``python``, which may be a different interpreter, and ``enjoy.py`` in the working directory, which only
    exists in a clone of its repository.
    """
    match command:
        case ["python", "enjoy.py", *options]:
            command = [sys.executable, "-m", "sb3_ppo_variants.zoo.enjoy", *options]
        case ["python", "-m", "rl_zoo3.record_video", *options]:
            command = [sys.executable, "-m", "sb3_ppo_variants.zoo.record_video", *options]
    return call(command, *args, **kwargs)
