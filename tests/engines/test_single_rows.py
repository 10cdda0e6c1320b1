"""The advantage of a minibatch with a single row is not normalised, as in SB3. In sb3-contrib it becomes NaN."""

from typing import Any

import pytest
import torch as th
from masked_envs import MASKED_SPACES, masked_envs
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO

from helpers import ACTION_SPACES, assert_same_weights, noise_envs
from sb3_ppo_variants import PPOClip


def trained(cls: Any, policy: str, **arguments: Any) -> Any:
    """Return a model after an update with minibatches of nine rows and of one row."""
    masked = cls is MaskablePPO or policy.startswith("Maskable")
    env = masked_envs(MASKED_SPACES["Discrete"], n_envs=2) if masked else noise_envs(ACTION_SPACES["Discrete"])
    return cls(policy, env, n_steps=5, batch_size=9, n_epochs=1, seed=0, device="cpu", **arguments).learn(10)


def is_finite(model: Any) -> bool:
    return all(bool(th.isfinite(parameter).all()) for parameter in model.policy.parameters())


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size", "ignore:std\\(\\)")
@pytest.mark.parametrize(
    ("policy", "cls"), [("MlpPolicy", PPO), ("MaskableMlpPolicy", MaskablePPO), ("MlpLstmPolicy", RecurrentPPO)]
)
def test_a_minibatch_of_one_row(policy: str, cls: Any) -> None:
    theirs = trained(cls, policy.removeprefix("Maskable"))
    reference, fast = (trained(PPOClip, policy, fast=fast) for fast in (False, True))
    assert is_finite(theirs) == (cls is PPO)
    assert is_finite(reference) and is_finite(fast)
    for wanted, got in zip(reference.policy.parameters(), fast.policy.parameters(), strict=True):
        th.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    if cls is PPO:
        assert_same_weights(reference, theirs)
