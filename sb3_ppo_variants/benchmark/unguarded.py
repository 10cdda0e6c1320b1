"""PPOClip without its guards, to measure what they cost."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.backends import torch_update
from sb3_ppo_variants.backends.arrays import update as array_update
from sb3_ppo_variants.guards.dummy import DummySteps, can_step
from sb3_ppo_variants.guards.stand_in import standing_in
from sb3_ppo_variants.variants import PPOClip


class NoSnapshot:
    """Keeps nothing to go back to."""

    def __init__(self, policy: object, optimizers: object):
        pass


class Unguarded(PPOClip):
    """Takes the same steps without a check, and makes updates that cannot be undone."""

    _guarded = False

    def train(self) -> None:
        """Update the policy."""
        with ExitStack() as stack:
            for module in (torch_update, array_update):
                stack.enter_context(mock.patch.object(module, "Snapshot", NoSnapshot))
            super().train()

    @contextmanager
    def _guards(self) -> Iterator[None]:
        with standing_in(self, _unchecked):
            yield


def _unchecked(env: VecEnv) -> DummySteps | VecEnv:
    return DummySteps(env) if can_step(env) else env
