"""PPOClip without its guards, to measure what they cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.backends import torch_actor, torch_update
from sb3_ppo_variants.guards.dummy import DummySteps, can_step
from sb3_ppo_variants.guards.stand_in import standing_in
from sb3_ppo_variants.variants import PPOClip


class NoSnapshot:
    """Replaces ``Snapshot``, and saves nothing that could be restored."""

    def __init__(self, policy: object, optimizers: object):
        pass


class Unguarded(PPOClip):
    """Takes the same steps as ``PPOClip``, but checks nothing and cannot undo updates made with PyTorch."""

    _guarded = False

    def train(self) -> None:
        """Update the policy."""
        with mock.patch.object(torch_update, "Snapshot", NoSnapshot):
            super().train()

    @contextmanager
    def _guards(self) -> Iterator[None]:
        with standing_in(self, _unchecked), mock.patch.object(torch_actor, "check_actions", _check_nothing):
            yield


def _check_nothing(*_: object) -> None:
    pass


def _unchecked(env: VecEnv) -> DummySteps | VecEnv:
    return DummySteps(env) if can_step(env) else env
