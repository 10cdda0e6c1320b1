"""Keeps what libraries say again and again out of the user's terminal and folder."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec


@contextmanager
def quieted() -> Iterator[None]:
    """Within it MuJoCo warns once and writes no ``MUJOCO_LOG.TXT``, and nobody warns of how pictures are made."""
    mujoco = import_module("mujoco") if find_spec("mujoco") else None
    with warnings.catch_warnings():
        # SB3 asks every environment for pictures, whether it can make some or not.
        warnings.filterwarnings("ignore", message=".*render_mode")
        warnings.filterwarnings("once", message="MuJoCo: ")
        # Of gymnasium's models, which nobody else can change.
        warnings.filterwarnings("ignore", message="MuJoCo: compiler attribute")
        if mujoco is not None:
            mujoco.set_mju_user_warning(lambda message: warnings.warn(f"MuJoCo: {message}"))
        try:
            yield
        finally:
            if mujoco is not None:
                mujoco.set_mju_user_warning(None)
