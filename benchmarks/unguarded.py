"""PPOClip without its guards, to measure what they cost."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.backends import reference
from sb3_ppo_variants.backends.native.update import NativeUpdate
from sb3_ppo_variants.base import algorithm
from sb3_ppo_variants.guards.dummy import DummySteps, can_step
from sb3_ppo_variants.guards.stand_in import standing_in
from sb3_ppo_variants.updates.run import Measured
from sb3_ppo_variants.variants import PPOClip


class NoSnapshot:
    """Replaces ``Snapshot``, and saves nothing that could be restored."""

    def __init__(self, policy: object, optimizers: object):
        pass


class Unguarded(PPOClip):
    """Takes the same steps as ``PPOClip``, but checks nothing and cannot undo updates made with PyTorch."""

    def learn(self, *args: Any, **arguments: Any) -> "Unguarded":
        """Train the model."""
        with ExitStack() as stack:
            for owner, name, replacement in REPLACED:
                stack.enter_context(mock.patch.object(owner, name, replacement))
            return super().learn(*args, **arguments)


def _check_nothing(*_: object) -> None:
    pass


@contextmanager
def _unguarded(model: Any) -> Iterator[None]:
    with standing_in(model, _unchecked):
        yield


def _unchecked(env: VecEnv) -> DummySteps | VecEnv:
    return DummySteps(env) if can_step(env) else env


REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (algorithm, "checked", _unguarded),
    (algorithm, "check_rollout", _check_nothing),
    (reference, "Snapshot", NoSnapshot),
    (reference, "check_actions", _check_nothing),
    (reference.TorchUpdate, "check_finite", _check_nothing),
    (NativeUpdate, "check_finite", _check_nothing),
    (Measured, "check_finite", _check_nothing),
)
