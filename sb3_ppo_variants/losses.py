"""Pure functions that the losses of all objectives share.

The objectives are in ``sb3_ppo_variants.objectives``, and the value losses in ``sb3_ppo_variants.value_losses``.

Equation numbers are those of Schulman et al. 2017, "Proximal Policy Optimization Algorithms"
(https://arxiv.org/abs/1707.06347). The paper maximises L; these functions return -L, to be minimised.

Every tensor has the shape ``(batch,)``. Losses and estimates are scalars, the means over the batch.
"""

import torch as th

from sb3_ppo_variants.errors import ArgumentError

# Keeps the division finite when all advantages are equal; SB3's value.
ADVANTAGE_EPSILON = 1e-8


def normalize_advantages(advantages: th.Tensor) -> th.Tensor:
    """Shift and scale advantages to mean 0 and standard deviation 1.

    A batch of one sample has no standard deviation and is returned unchanged (SB3 issue 325).

    :param advantages: advantage estimates, shape ``(batch,)``
    :return: normalised advantages, shape ``(batch,)``
    """
    if len(advantages) <= 1:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + ADVANTAGE_EPSILON)


def check_loss(loss: object, part: object) -> None:
    """Check what an objective or a value loss returned for a minibatch.

    :param part: the objective or the value loss
    :raises ArgumentError: if the loss is not a scalar tensor
    """
    if not isinstance(loss, th.Tensor) or loss.shape != ():
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, th.Tensor) else repr(loss)
        raise ArgumentError(
            f"{type(part).__name__}.loss returned {found}; allowed: a scalar tensor, such as the mean over the samples"
        )


def entropy_loss(entropy: th.Tensor | None, log_prob: th.Tensor) -> th.Tensor:
    """Compute -E[S] of equation 9, the negative entropy bonus.

    :param entropy: the entropy in each state; ``None`` where it has no analytical form (squashed Gaussians)
    :param log_prob: log pi(a|s) of the actions taken, from which the entropy is then estimated
    """
    return th.mean(log_prob) if entropy is None else -th.mean(entropy)


def approximate_kl(log_ratio: th.Tensor) -> th.Tensor:
    """Compute the k3 estimate of KL(old || new) from the actions taken: E[(r - 1) - log r].

    This is SB3's ``train/approx_kl``; see http://joschu.net/blog/kl-approx.html.

    :param log_ratio: log r(theta)
    """
    return th.mean((th.exp(log_ratio) - 1) - log_ratio)


def ratio_deviation(log_ratio: th.Tensor) -> th.Tensor:
    """Compute E[``|r - 1|``], by which ESPO stops its updates (https://arxiv.org/abs/2202.00079).

    :param log_ratio: log r(theta)
    """
    return th.mean(th.abs(th.exp(log_ratio) - 1))


def clip_fraction(ratio: th.Tensor, clip_range: float) -> th.Tensor:
    """Return the share of samples with ``|r - 1| > eps``, in [0, 1]."""
    return th.mean((th.abs(ratio - 1) > clip_range).float())
