"""A check that the gradient of an objective over arrays is that of its loss."""

import numpy as np
import torch as th

from sb3_ppo_variants.objectives.objective import ArrayObjective, Batch

SAMPLES = 200


def check_gradient(objective: ArrayObjective, seed: int = 0) -> None:
    """Compare ``objective.gradient`` with autograd through ``objective.loss``, to test an objective of your own.

    The samples have ratios close to 1 and far from it, and positive, negative and zero advantages, in double precision.

    :param objective: the objective
    :param seed: seed of the samples
    :raises AssertionError: if the loss or a derivative differs by more than rounding, naming it
    """
    rng = np.random.default_rng(seed)
    log_ratio = rng.normal(scale=0.5, size=SAMPLES)
    advantages = rng.normal(size=SAMPLES) * (rng.random(SAMPLES) > 0.1)
    kl = rng.exponential(0.1, SAMPLES)

    log_ratio_tensor, kl_tensor = (th.from_numpy(array).requires_grad_() for array in (log_ratio, kl))
    loss = objective.loss(Batch(log_ratio_tensor.exp(), th.from_numpy(advantages), kl_tensor))
    d_log_ratio, d_kl = th.autograd.grad(loss, (log_ratio_tensor, kl_tensor), allow_unused=True)

    found = objective.gradient(Batch(np.exp(log_ratio), advantages, kl))
    _compare("the mean of losses", found.losses.mean(), loss)
    _compare("d_log_ratio", found.d_log_ratio, d_log_ratio)
    _compare("d_kl", found.d_kl, d_kl)


def _compare(name: str, found: np.ndarray | None, expected: th.Tensor | None) -> None:
    # If the loss does not depend on a variable, its gradient is None or zero in both forms.
    found = np.zeros(1) if found is None else found
    expected_array = np.zeros(1) if expected is None else expected.detach().numpy()
    np.testing.assert_allclose(found, expected_array, rtol=1e-7, atol=1e-12, err_msg=f"{name} is not that of the loss")
