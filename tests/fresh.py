"""Fresh interpreters that start quickly: they are forked from a server that has already imported large packages."""

import gc
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch as th

# PyTorch imports its compiler at the first step of an optimizer.
IMPORTED = [
    "sb3_ppo_variants.variants",
    "sb3_contrib",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "gymnasium.envs.classic_control",
    "matplotlib.pyplot",
    "pandas",
    "pytest",
    # Most of what rl_zoo3 needs. It changes gymnasium itself, so it is left out.
    "optuna.visualization",
    "huggingface_sb3",
]
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
FRESH: Any = multiprocessing.get_context(METHOD)


class Ended(NamedTuple):
    """The exit code and output of an interpreter."""

    returncode: int
    stdout: str
    stderr: str


def ended(function: Callable[..., None], *args: Any, folder: Path | None = None, **environment: str) -> Ended:
    """Call a function in its own interpreter.

    :param folder: working directory; ``None`` uses a temporary one
    :param environment: environment variables
    """
    with tempfile.TemporaryDirectory() as output:
        process = FRESH.Process(target=_begin, args=(output, str(folder or output), environment, function, args))
        process.start()
        process.join(600)
        process.kill()
        process.join()
        return Ended(process.exitcode, *(Path(output, name).read_text() for name in ("stdout", "stderr")))


def _begin(output: str, folder: str, environment: dict[str, str], function: Callable[..., None], args: Any) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(output, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(environment)
    os.chdir(folder)
    as_new()
    multiprocessing.set_start_method(None, force=True)  # Back to the platform's default.
    multiprocessing.set_forkserver_preload(["sb3_ppo_variants.envs"])  # Once for all workers of environments.
    function(*args)


def as_new() -> None:
    """Reset the state that a process has inherited from the one that it was forked from, except its imports."""
    gc.freeze()  # A garbage collection would otherwise copy all that was imported.
    np.random.seed()
    th.seed()
    th.set_num_threads(1)


def run_code(code: str) -> None:
    """Run code as if it were pasted into an interpreter."""
    sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "<pasted>", "exec"), sys.modules["__main__"].__dict__)


def run_code_anew(code: str) -> None:
    """Run code as if neither this package nor sb3-contrib had been imported."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("sb3_ppo_variants", "sb3_contrib"):
            del sys.modules[name]
    run_code(code)


def run_script(script: str, *options: str) -> None:
    """Run a file with command-line options."""
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")


def run_module(module: str, *options: str) -> None:
    """Run a module with command-line options."""
    sys.argv = [module, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
