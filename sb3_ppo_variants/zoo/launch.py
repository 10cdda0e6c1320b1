"""Scripts of rl_zoo3, run where this package's algorithms are known."""

import runpy
import subprocess
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch


def launch(script: str) -> None:
    """Run a script of rl_zoo3 with the arguments of the command line.

    :param script: name of the script's module in ``rl_zoo3``
    :raises ImportError: if rl_zoo3 is not installed, saying how to install it
    """
    check_installed()
    from sb3_ppo_variants.zoo.registry import register

    register()
    # Some of the scripts run others.
    with patch.object(subprocess, "call", _call):
        runpy.run_module(f"rl_zoo3.{script}", run_name="__main__", alter_sys=True)


def check_installed() -> None:
    """:raises ImportError: if rl_zoo3 is not installed, saying how to install it"""
    try:
        import rl_zoo3  # noqa: F401
    except ImportError as error:
        raise ImportError("rl_zoo3 is missing: pip install 'sb3_ppo_variants[zoo]'") from error


_subprocess_call = subprocess.call


def _call(command: Sequence[str], *args: Any, **kwargs: Any) -> int:
    return _subprocess_call(_ours(list(command)), *args, **kwargs)


def _ours(command: list[str]) -> list[str]:
    """The command with rl_zoo3's script replaced by this package's.

    rl_zoo3 runs ``python``, which may be another interpreter, and ``enjoy.py`` in the working directory, which is there
    in a clone of its repository only.
    """
    if command[:2] == ["python", "enjoy.py"]:
        return [sys.executable, "-m", "sb3_ppo_variants.zoo.enjoy", *command[2:]]
    if command[:2] == ["python", "-m"]:
        return [sys.executable, "-m", command[2].replace("rl_zoo3.", "sb3_ppo_variants.zoo.", 1), *command[3:]]
    return command
