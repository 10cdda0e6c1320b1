"""The native library draws from distributions of bounded actions, and scales the actions, as PyTorch does."""

from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import DISTRIBUTIONS, rolled_out
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from helpers import BOX, noise_envs, small
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.distributions import Beta, BetaDistribution
from sb3_ppo_variants.policies.head import BoxActions

pytestmark = pytest.mark.usefixtures("natively")
ASYMMETRIC = spaces.Box(np.array([-1, -3, 0.1], np.float32), np.array([2, 5, 0.3], np.float32))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_samples(distribution: str) -> None:
    """Actions, as quantiles of the distributions that they were drawn from, are uniform and independent."""
    stats = pytest.importorskip("scipy.stats")
    # With a small standard deviation, rounding moves few squashed actions.
    narrow = {} if distribution == "beta" else {"log_std_init": -2.0}
    kwargs = DISTRIBUTIONS[distribution] | narrow
    model = rolled_out(noise_envs(ASYMMETRIC, n_envs=3), fast=True, policy_kwargs=kwargs, n_steps=1000)
    actions = model.rollout_buffer.actions.swapaxes(0, 1).reshape(-1, 3).astype(float)
    first, second = (each.numpy() for each in model.old_policy.parameters)
    if distribution == "beta":
        quantiles = stats.beta.cdf((actions + 1) / 2, first, second)
    else:
        drawn = np.arctanh(np.clip(actions, -1 + 1e-7, 1 - 1e-7)) if "squashed" in distribution else actions
        quantiles = stats.norm.cdf(drawn, first, second)
    for column in quantiles.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    correlations = np.corrcoef(np.vstack([quantiles.T, np.roll(quantiles[:, 0], 1)]))
    np.testing.assert_allclose(correlations, np.eye(4), atol=0.08)


@pytest.mark.parametrize("distribution", ["squashed", "squashed of state", "beta"])
def test_extreme_outputs_stay_finite(distribution: str) -> None:
    """Actions that rounding has moved to the bounds have finite log-probabilities, and the environment takes them."""
    model = small(env=noise_envs(ASYMMETRIC), fast=True, policy_kwargs=DISTRIBUTIONS[distribution])
    with th.no_grad():
        model.policy.action_net.bias[:3] = 60.0
    model.learn(32)
    actions = model.rollout_buffer.actions
    assert np.isfinite(model.rollout_buffer.log_probs).all() and np.abs(actions).max() <= 1
    assert all(map(ASYMMETRIC.contains, model.policy.unscale_action(actions.reshape(-1, 3))))


def actions_by_step(**arguments: Any) -> tuple[Any, list[np.ndarray], list[np.ndarray]]:
    """Return a model after a rollout, the actions of each step, and what its environments got."""
    drawn, taken = [], []

    def keep(found: dict[str, Any], _: object) -> bool:
        drawn.append(found["actions"].copy())
        taken.append(found["clipped_actions"].copy())
        return True

    model = small(env=noise_envs(ASYMMETRIC, n_envs=3), fast=True, n_steps=200, batch_size=100, **arguments)
    model.learn(600, callback=keep)
    return model, drawn, taken


@pytest.mark.parametrize("distribution", ["squashed", "beta"])
def test_actions_are_scaled_as_by_sb3(distribution: str) -> None:
    model, drawn, taken = actions_by_step(policy_kwargs=DISTRIBUTIONS[distribution])
    scaled = BasePolicy.unscale_action(model.policy, np.array(drawn))
    np.testing.assert_array_equal(np.array(taken), np.clip(scaled, ASYMMETRIC.low, ASYMMETRIC.high))


class Cautious(BoxActions, ActorCriticPolicy):
    """Scales actions to the lower half of their bounds."""

    def unscale_action(self, scaled_action: np.ndarray) -> np.ndarray:
        return super().unscale_action((scaled_action - 1) / 2)


def test_actions_are_scaled_by_a_policy_of_the_user() -> None:
    _, drawn, taken = actions_by_step(policy_kwargs={"distribution": "beta"}, policy=Cautious)
    middle = (ASYMMETRIC.low + ASYMMETRIC.high) / 2
    expected = ASYMMETRIC.low + (np.array(drawn) + 1) / 2 * (middle - ASYMMETRIC.low)
    np.testing.assert_allclose(np.array(taken), expected, rtol=1e-5, atol=1e-6)


class OwnDistribution(BetaDistribution):
    """Might draw other actions."""


class OwnBeta(Beta):
    def make(self, action_dim: int) -> OwnDistribution:
        return OwnDistribution(action_dim)


def test_a_distribution_of_a_users_class_takes_the_reference_path() -> None:
    with pytest.raises(ValueError, match="actions are drawn from a OwnDistribution"):
        PPOClip("MlpPolicy", noise_envs(BOX), fast=True, policy_kwargs={"distribution": OwnBeta()})
