"""The effect of an update on the policy of a two-armed bandit, whose first arm pays 1 and whose second pays nothing."""

import numpy as np
import torch as th

from sb3_ppo_variants.objectives import AdaptiveKL, Batch, Objective

# Enough small steps of gradient ascent to converge, if the objective has a maximum.
STEPS, STEP_SIZE = 2000, 0.05


def advantages(prob: float) -> np.ndarray:
    """Return the advantages of the two arms.

    They have mean 0 and standard deviation 1 under a policy that takes the first arm with probability ``prob``.
    """
    pays = np.array([1.0, 0.0])
    return (pays - prob) / np.sqrt(prob * (1 - prob))


def logit(prob: float) -> float:
    """Return the logit of a probability."""
    return float(np.log(prob / (1 - prob)))


def value_and_slope(objective: Objective, old: float, new: float) -> tuple[float, float]:
    """Return the objective without sampling noise, and its derivative with respect to the logit of the first arm.

    :param old: the probability of the first arm under the old policy
    :param new: the probability of the first arm under the new policy
    """
    of_old = th.tensor([old, 1 - old], dtype=th.float64)
    logit_of_first = th.tensor(logit(new), dtype=th.float64, requires_grad=True)
    ratio = th.stack([logit_of_first, -logit_of_first]).sigmoid() / of_old
    # The batch has each arm once. These weights turn its mean into the expectation under the old policy.
    weighted = 2 * of_old * th.from_numpy(advantages(old))
    loss = objective.loss(Batch(ratio, weighted, -(of_old * ratio.log()).sum().expand(2)))
    (slope,) = th.autograd.grad(loss, logit_of_first)
    return -loss.item(), -slope.item()


def ascent(objective: Objective, old: float, steps: int = STEPS) -> list[float]:
    """Return the probability of the first arm before gradient ascent on the objective, and after each step of it."""
    position, probs = logit(old), [old]
    for _ in range(steps):
        position += STEP_SIZE * value_and_slope(objective, old, probs[-1])[1]
        probs.append(float(1 / (1 + np.exp(-position))))
    return probs


def update(objective: Objective, old: float, steps: int = STEPS) -> float:
    """Return the probability of the first arm after gradient ascent on the objective from the old policy."""
    return ascent(objective, old, steps)[-1]


def kl(old: float, new: float) -> float:
    """Return KL(old || new) in nats."""
    return float(old * np.log(old / new) + (1 - old) * np.log((1 - old) / (1 - new)))


def learn(objective: Objective, updates: int) -> list[float]:
    """Return the probability of the first arm, which starts at 1/2, before the first update and after each one."""
    probs = [0.5]
    for _ in range(updates):
        probs.append(update(objective, probs[-1]))
    return probs


def adapt(objective: AdaptiveKL, updates: int, old: float = 0.5) -> tuple[list[float], list[float]]:
    """Return beta and the KL of each update.

    Each update is on a new bandit, whose first arm the policy takes with probability ``old``.
    """
    coefficients, divergences = [], []
    for _ in range(updates):
        coefficients.append(objective.kl_coef)
        divergences.append(kl(old, update(objective, old)))
        objective = objective.after_update(divergences[-1])
    return coefficients, divergences
