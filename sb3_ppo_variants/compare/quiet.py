"""Keeps the repeated messages of libraries out of the user's terminal and folder."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec


@contextmanager
def quieted() -> Iterator[None]:
    """Let MuJoCo warn only once and write no ``MUJOCO_LOG.TXT``, and ignore warnings about the render mode."""
    mujoco = import_module("mujoco") if find_spec("mujoco") else None
    with warnings.catch_warnings():
        # SB3 asks every environment for its render mode, even if the environment cannot render.
        warnings.filterwarnings("ignore", message=".*render_mode")
        warnings.filterwarnings("once", message="MuJoCo: ")
        # This is about gymnasium's MuJoCo models, which users cannot change.
        warnings.filterwarnings("ignore", message="MuJoCo: compiler attribute")
        if mujoco is not None:
            mujoco.set_mju_user_warning(lambda message: warnings.warn(f"MuJoCo: {message}"))
        try:
            yield
        finally:
            if mujoco is not None:
                mujoco.set_mju_user_warning(None)
