"""What surrounds a call of ``learn``, however it ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.backends.arrays.threads import ONE_THREAD
from sb3_ppo_variants.guards import check_seen, guarded
from sb3_ppo_variants.guards.interrupts import interrupts_can_be_held
from sb3_ppo_variants.updates.finite import check_parameters


@contextmanager
def settings_kept() -> Iterator[None]:
    """Gradients are on within it, even if an interrupt hit the exit of a ``no_grad``; afterwards all is as it was."""
    gradients, errors = th.is_grad_enabled(), np.geterr()
    try:
        th.set_grad_enabled(True)
        with interrupts_can_be_held():
            yield
    finally:
        th.set_grad_enabled(gradients)
        np.seterr(**errors)
        ONE_THREAD.release()


@contextmanager
def checked(model: OnPolicyAlgorithm) -> Iterator[None]:
    """Within it the environments are checked, and an error that follows from a number names the number."""
    try:
        with guarded(model):
            yield
    except (ValueError, RuntimeError):
        check_parameters(model.policy)
        check_seen(model)
        raise
