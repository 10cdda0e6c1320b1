"""Checks that a buffer takes one rollout at a time, and a complete one."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppo_variants.errors import ArgumentError

# This is not an attribute of the buffers, so that a copy of the model made during a rollout has a free buffer.
_UNDER_WAY: WeakSet[RolloutBuffer] = WeakSet()


@contextmanager
def one_rollout(buffer: RolloutBuffer, n_steps: int) -> Iterator[None]:
    """Reserve the buffer for one rollout while the context is active.

    :param n_steps: length of the rollout
    :raises ArgumentError: if the buffer has a different length
    :raises RuntimeError: if another rollout is under way
    """
    check_is_free(buffer)
    if n_steps != buffer.buffer_size:
        raise ArgumentError(
            f"n_steps={n_steps} was set after the rollout buffer was created with n_steps={buffer.buffer_size}. "
            f"To change it, save the model and pass n_steps={n_steps} to load()"
        )
    _UNDER_WAY.add(buffer)
    try:
        yield
    finally:
        _UNDER_WAY.discard(buffer)


def check_is_free(buffer: RolloutBuffer) -> None:
    """Check that no rollout is being written to the buffer.

    :raises RuntimeError: if one is
    """
    if buffer in _UNDER_WAY:
        raise RuntimeError(
            "a callback called learn() of the model that is being trained, whose rollout is not complete: train a copy "
            "of the model, or call learn() when this training has ended"
        )


def check_is_full(buffer: RolloutBuffer) -> None:
    """Check that the buffer holds a complete rollout.

    :raises RuntimeError: if steps are missing
    """
    if not buffer.full:
        raise RuntimeError(
            f"train() needs a whole rollout, but the buffer has {buffer.pos} of {buffer.buffer_size} steps: "
            "call collect_rollouts() first, or learn(), which calls both"
        )
