"""Generalised advantage estimation over the arrays of a rollout (https://arxiv.org/abs/1506.02438)."""

from itertools import accumulate

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer


def compute_returns_and_advantage(buffer: RolloutBuffer, last_values: np.ndarray, dones: np.ndarray) -> None:
    """Compute the same as the buffer's method of this name, with the recursion over time on plain Python floats.

    :param buffer: a full buffer; its ``advantages`` and ``returns`` are filled
    :param last_values: values of the states after the last step, shape ``(n_envs,)``
    :param dones: whether the last step ended an episode, shape ``(n_envs,)``
    """
    next_values = np.concatenate([buffer.values[1:], last_values[None]])
    continues = np.concatenate([1 - buffer.episode_starts[1:], 1 - dones[None].astype(np.float32)])
    deltas = buffer.rewards + buffer.gamma * next_values * continues - buffer.values
    decays = buffer.gamma * buffer.gae_lambda * continues
    for env in range(buffer.n_envs):
        backwards = zip(deltas[::-1, env].tolist(), decays[::-1, env].tolist(), strict=True)
        buffer.advantages[::-1, env] = [*accumulate(backwards, _add_discounted, initial=0.0)][1:]
    buffer.returns = buffer.advantages + buffer.values


def _add_discounted(following: float, step: tuple[float, float]) -> float:
    delta, decay = step
    return delta + decay * following
