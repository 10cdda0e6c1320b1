"""Generalised advantage estimation over whole rows of a rollout (https://arxiv.org/abs/1506.02438)."""

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer


def compute_returns_and_advantage(buffer: RolloutBuffer, last_values: np.ndarray, dones: np.ndarray) -> None:
    """What the buffer's method of this name does, with one product and sum per step.

    :param buffer: a full buffer; its ``advantages`` and ``returns`` are filled
    :param last_values: values of the states after the last step, shape ``(n_envs,)``
    :param dones: whether the last step ended an episode, shape ``(n_envs,)``
    """
    next_values = np.concatenate([buffer.values[1:], last_values[None]])
    continues = np.concatenate([1 - buffer.episode_starts[1:], 1 - dones[None].astype(np.float32)])
    advantages = buffer.rewards + buffer.gamma * next_values * continues - buffer.values
    decay = buffer.gamma * buffer.gae_lambda * continues
    following = advantages[-1]
    for advantage, factor in zip(advantages[-2::-1], decay[-2::-1], strict=True):
        advantage += factor * following
        following = advantage
    buffer.advantages = advantages
    buffer.returns = advantages + buffer.values
