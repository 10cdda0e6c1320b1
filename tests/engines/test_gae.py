"""Generalised advantage estimation on the fast path is that of SB3's buffer."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppo_variants.engines.native.actor import compute_returns_and_advantage


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [1, 40])
def test_gae_is_that_of_the_buffer(n_steps: int, n_envs: int) -> None:
    rng = np.random.default_rng(0)
    space = spaces.Box(-1, 1, (1,))
    buffers = [RolloutBuffer(n_steps, space, space, "cpu", 0.9, 0.97, n_envs) for _ in range(2)]
    rewards, values = rng.normal(size=(2, n_steps, n_envs)).astype(np.float32)
    starts, (last_values,) = rng.random((n_steps, n_envs)) < 0.2, rng.normal(size=(1, n_envs)).astype(np.float32)
    dones = np.arange(n_envs) == 0
    for buffer in buffers:
        buffer.rewards[:], buffer.values[:], buffer.episode_starts[:] = rewards, values, starts
    buffers[0].compute_returns_and_advantage(th.as_tensor(last_values), dones)
    compute_returns_and_advantage(buffers[1], last_values, dones)
    np.testing.assert_allclose(buffers[1].advantages, buffers[0].advantages, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(buffers[1].returns, buffers[0].returns, rtol=1e-5, atol=1e-6)
    assert buffers[1].advantages.dtype == buffers[1].returns.dtype == np.float32
