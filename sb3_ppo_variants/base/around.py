"""Context managers around ``learn``, which clean up however it ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.backends.native.finite import native_test
from sb3_ppo_variants.guards import check_seen, guarded
from sb3_ppo_variants.guards.interrupts import interrupts_can_be_held
from sb3_ppo_variants.updates.finite import check_parameters


@contextmanager
def settings_kept() -> Iterator[None]:
    """Enable gradients while the context is active, let interrupts be held, and restore all settings afterwards.

    Gradients may be disabled when the context begins, if an interrupt has hit the exit of a ``no_grad``. The settings
    are PyTorch's gradient mode, NumPy's error handling and the handler of Ctrl-C.
    """
    gradients, errors = th.is_grad_enabled(), np.geterr()
    try:
        th.set_grad_enabled(True)
        with interrupts_can_be_held():
            yield
    finally:
        th.set_grad_enabled(gradients)
        np.seterr(**errors)


@contextmanager
def checked(model: OnPolicyAlgorithm) -> Iterator[None]:
    """Check the environments while the context is active, and name the cause of errors that follow from bad numbers.

    After a ``ValueError`` or ``RuntimeError``, the parameters and the last observations are checked. If one of them is
    not finite, that is reported instead of the original error.
    """
    try:
        with guarded(model, native_test):
            yield
    except (ValueError, RuntimeError):
        check_parameters(model.policy)
        check_seen(model)
        raise
