"""Policies whose continuous actions come from other distributions: what fits, what is stored, saved and resumed."""

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import kl_divergence

from helpers import BOX, NoiseEnv, assert_same_policy, assert_same_weights, collect, noise_envs, small
from sb3_ppo_variants import ArgumentError, PPOFixedKL
from sb3_ppo_variants.distributions import Beta, SquashedGaussian

DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "gaussian of state": {"distribution": "gaussian", "std": "state"},
    "squashed": {"distribution": "squashed_gaussian"},
    "squashed of state": {"distribution": SquashedGaussian("state")},
    "beta": {"distribution": "beta"},
}
ASYMMETRIC = spaces.Box(np.array([[-1, -3, 0.1]], np.float32), np.array([[2, 5, 0.3]], np.float32))


class Picky(gym.Wrapper):
    """Refuses actions that are not in the action space, and keeps the last one."""

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.last = action
        return super().step(action)


@pytest.mark.parametrize("kwargs", [{"distribution": "gaussian"}, {"std": "parameter"}])
def test_the_default_is_sb3s(kwargs: dict[str, Any]) -> None:
    wanted, got = (small(policy_kwargs=each, fast=False).learn(64) for each in (None, kwargs))
    assert_same_policy(got, wanted)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", ["squashed", "squashed of state", "beta"])
def test_stored_predicted_and_taken_actions_agree(name: str, fast: bool) -> None:
    env = Picky(NoiseEnv(ASYMMETRIC))
    wide = {} if name == "beta" else {"log_std_init": 1.5}
    model = collect(small(env=env, policy_kwargs=DISTRIBUTIONS[name] | wide, fast=fast))
    low, high = ASYMMETRIC.low, ASYMMETRIC.high
    stored = model.rollout_buffer.actions[-1, 0]
    assert np.abs(model.rollout_buffer.actions).max() <= 1
    np.testing.assert_allclose(env.last.ravel(), (low + (stored + 1) / 2 * (high - low)).ravel(), rtol=1e-5)
    observation = model.observation_space.sample()
    distribution = model.policy.get_distribution(model.policy.obs_to_tensor(observation)[0])
    mode = distribution.mode().detach().numpy()
    predicted, _ = model.predict(observation, deterministic=True)
    np.testing.assert_allclose(predicted.ravel(), (low + (mode + 1) / 2 * (high - low)).ravel(), rtol=1e-5)
    assert all(ASYMMETRIC.contains(model.predict(observation)[0]) for _ in range(100))
    for extreme, bound in ((-1, low), (1, high)):
        np.testing.assert_array_equal(model.policy.unscale_action(np.full((1, 3), extreme, np.float32)), bound)


def plain_loop(model: Any, kl_coef: float) -> Any:
    """Return the policy after an update with equation 8 of the paper, by autograd and SB3's helper for the KL."""
    policy, old_policy, buffer = deepcopy(model.policy), deepcopy(model.policy), deepcopy(model.rollout_buffer)
    for _ in range(model.n_epochs):
        for batch in buffer.get(model.batch_size):
            values, log_prob, entropy = policy.evaluate_actions(batch.observations, batch.actions)
            entropy = -log_prob if entropy is None else entropy
            with th.no_grad():
                old = deepcopy(old_policy.get_distribution(batch.observations))
            kl = kl_divergence(old, policy.get_distribution(batch.observations)).sum(dim=1)
            advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
            surrogate = th.exp(log_prob - batch.old_log_prob) * advantages - kl_coef * kl
            error = (values.flatten() - batch.returns).square().mean()
            loss = -surrogate.mean() - model.ent_coef * entropy.mean() + model.vf_coef * error
            policy.optimizer.zero_grad()
            loss.backward()
            th.nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            policy.optimizer.step()
    return policy


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_update_is_the_equations(name: str, fast: bool) -> None:
    model = collect(small(PPOFixedKL, kl_coef=3.0, ent_coef=0.01, policy_kwargs=DISTRIBUTIONS[name], fast=fast))
    state = np.random.get_state()
    expected = plain_loop(model, 3.0)
    np.random.set_state(state)
    before = deepcopy(model.policy)
    model.train()
    for new, wanted, old in zip(model.policy.parameters(), expected.parameters(), before.parameters(), strict=True):
        th.testing.assert_close(new, wanted, rtol=1e-4, atol=1e-6)
        assert (new - old).abs().max() > 1e-4


def test_state_dependent_standard_deviations_begin_at_log_std_init() -> None:
    model = small(policy_kwargs={"distribution": "gaussian", "std": "state", "log_std_init": -1.25})
    std = model.policy.get_distribution(th.zeros(1, 3)).distribution.stddev
    np.testing.assert_allclose(std.detach(), np.exp(-1.25), rtol=1e-6)
    assert "train/std" not in model.learn(64).logger.name_to_value


UNBOUNDED = spaces.Box(np.array([-1, -np.inf, 0, -1], np.float32), np.array([1, 1, np.inf, 1], np.float32))
HUGE = spaces.Box(np.array([-1, -3e38], np.float32), np.array([1, 3e38], np.float32))
REFUSED: list[tuple[spaces.Space, dict[str, Any], dict[str, Any], str]] = [
    (spaces.Discrete(3), {"distribution": "beta"}, {}, r"distribution=Beta\(\) needs a Box action space, .* Discrete"),
    (UNBOUNDED, {"distribution": "beta"}, {}, "infinite bounds; .*, which the dimensions 1, 2 lack"),
    (HUGE, {"distribution": "beta"}, {}, r"too far apart, as with ActionsAsDrawn: Box"),
    (BOX, {"distribution": "beta"}, {"use_sde": True}, r"distribution=Beta\(\) and use_sde=True are two kinds of"),
    (BOX, {"distribution": "beta", "squash_output": True}, {}, "leave out squash_output=True"),
    (BOX, {"distribution": "cauchy"}, {}, r"policy_kwargs\['distribution'\]='cauchy' is not allowed"),
    (BOX, {"distribution": "beta", "std": "state"}, {}, "std='state' needs a Gaussian"),
    (BOX, {"distribution": Beta(), "std": "state"}, {}, "has no effect beside"),
    (BOX, {"distribution": "beta", "log_std_init": -1.0}, {}, r"\['log_std_init'\] has no effect beside"),
]


@pytest.mark.parametrize(("space", "policy_kwargs", "arguments", "message"), REFUSED)
def test_what_does_not_fit_is_refused(
    space: spaces.Space, policy_kwargs: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        small(env=noise_envs(space), policy_kwargs=policy_kwargs, **arguments)


def test_gsde_keeps_its_own_noise() -> None:
    shared: dict[str, Any] = {"use_sde": True, "fast": False}
    wanted = small(policy_kwargs={"squash_output": True}, **shared).learn(32)
    got = small(policy_kwargs={"squash_output": True, "distribution": "gaussian"}, **shared).learn(32)
    assert_same_weights(got, wanted)
