"""Checks of what objectives return, and that the gradient of an objective over arrays is that of its loss."""

import numpy as np
import torch as th

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.objectives.objective import ArrayObjective, Batch, Gradient, Objective

SAMPLES = 200


def loss_of(objective: Objective, batch: Batch[th.Tensor]) -> th.Tensor:
    """Return the loss of an objective.

    :raises ArgumentError: if it is not a scalar tensor
    """
    loss = objective.loss(batch)
    if not isinstance(loss, th.Tensor) or loss.shape != ():
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, th.Tensor) else repr(loss)
        raise ArgumentError(
            f"{type(objective).__name__}.loss returned {found}; allowed: a scalar tensor, such as the mean over the "
            "samples"
        )
    return loss


def gradient_of(objective: ArrayObjective, batch: Batch[np.ndarray]) -> Gradient:
    """Return the losses and the gradient of an objective.

    :raises ArgumentError: if it returns anything but a ``Gradient``, if what it contains is not an array of shape
        ``(batch,)``, or if there is a ``d_kl`` although the objective does not need the KL
    """
    returned, name = objective.gradient(batch), type(objective).__name__
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise ArgumentError(f"{name}.gradient returned {returned!r}; allowed: a Gradient")
    found = Gradient(*returned)
    for field, array in zip(Gradient._fields, found, strict=True):
        if field == "d_kl" and array is None:
            continue
        if not isinstance(array, np.ndarray) or array.shape != batch.ratio.shape:
            which = f"of shape {array.shape}" if isinstance(array, np.ndarray | np.generic) else f"= {array!r}"
            raise ArgumentError(
                f"{name}.gradient returned {field} {which}; allowed: an array of shape {batch.ratio.shape}, one number "
                "per sample"
            )
    if found.d_kl is not None and not objective.needs_kl:
        raise ArgumentError(
            f"{name}.gradient returned a d_kl, but needs_kl is False: set needs_kl = True in its class, or return None"
        )
    return found


def check_gradient(objective: ArrayObjective, seed: int = 0) -> None:
    """Compare ``objective.gradient`` with autograd through ``objective.loss``, to test an objective of your own.

    The samples have ratios close to 1 and far from it, and positive, negative and zero advantages, in double precision.

    :param objective: the objective
    :param seed: seed of the samples
    :raises AssertionError: if the loss or a derivative differs by more than rounding, naming it
    :raises ArgumentError: (a ``ValueError``) if the loss or a derivative has another shape than in training
    """
    rng = np.random.default_rng(seed)
    log_ratio = rng.normal(scale=0.5, size=SAMPLES)
    advantages = rng.normal(size=SAMPLES) * (rng.random(SAMPLES) > 0.1)
    kl = rng.exponential(0.1, SAMPLES)
    needs_kl = objective.needs_kl

    log_ratio_tensor, kl_tensor = (th.from_numpy(array).requires_grad_() for array in (log_ratio, kl))
    tensors = Batch(log_ratio_tensor.exp(), th.from_numpy(advantages), kl_tensor if needs_kl else None)
    loss = loss_of(objective, tensors)
    d_log_ratio, d_kl = th.autograd.grad(loss, (log_ratio_tensor, kl_tensor), allow_unused=True)

    found = gradient_of(objective, Batch(np.exp(log_ratio), advantages, kl if needs_kl else None))
    _compare("the mean of losses", found.losses.mean(), loss)
    _compare("d_log_ratio", found.d_log_ratio, d_log_ratio)
    _compare("d_kl", found.d_kl, d_kl)


def _compare(name: str, found: np.ndarray | None, expected: th.Tensor | None) -> None:
    # If the loss does not depend on a variable, its gradient is None or zero in both forms.
    found = np.zeros(1) if found is None else found
    expected_array = np.zeros(1) if expected is None else expected.detach().numpy()
    np.testing.assert_allclose(found, expected_array, rtol=1e-7, atol=1e-12, err_msg=f"{name} is not that of the loss")
