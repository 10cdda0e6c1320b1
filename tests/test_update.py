"""The update of each variant against a plain loop with SB3's KL helper and a frozen copy of the policy."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import kl_divergence
from stable_baselines3.common.policies import ActorCriticPolicy

from helpers import ACTION_SPACES, BOX, collect, noise_envs
from sb3_ppo_variants import PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.update import rollout_normalizer

Surrogate = Callable[[th.Tensor, th.Tensor, th.Tensor], th.Tensor]


def eq6(r: th.Tensor, a: th.Tensor, kl: th.Tensor) -> th.Tensor:
    return (r * a).mean()


def eq7(r: th.Tensor, a: th.Tensor, kl: th.Tensor) -> th.Tensor:
    return th.minimum(r * a, r.clip(0.95, 1.05) * a).mean()


def eq8(r: th.Tensor, a: th.Tensor, kl: th.Tensor) -> th.Tensor:
    return (r * a - 30.0 * kl).mean()


def eq8_clipped(r: th.Tensor, a: th.Tensor, kl: th.Tensor) -> th.Tensor:
    return (th.minimum(r * a, r.clip(0.95, 1.05) * a) - 30.0 * kl).mean()


CASES: dict[str, tuple[type[PPOBase], dict[str, Any], Surrogate]] = {
    "unclipped": (PPOUnclipped, {}, eq6),
    "clip": (PPOClip, {"clip_range": 0.05}, eq7),
    "fixed": (PPOFixedKL, {"kl_coef": 30.0}, eq8),
    "fixed and clip": (PPOFixedKL, {"kl_coef": 30.0, "clip_range": 0.05}, eq8_clipped),
    "adaptive": (PPOAdaptiveKL, {"kl_coef": 30.0}, eq8),
    "adaptive and clip": (PPOAdaptiveKL, {"kl_coef": 30.0, "clip_range": 0.05}, eq8_clipped),
}


def collected(cls: Any, action_space: spaces.Space, **arguments: Any) -> PPOBase:
    """Return a model with a full rollout buffer, ready to train."""
    arguments = {"learning_rate": 3e-3, "n_epochs": 3, **arguments}
    model = cls("MlpPolicy", noise_envs(action_space, n_envs=3), n_steps=20, batch_size=16, seed=1, **arguments)
    return collect(model)


def normalised(minibatch: th.Tensor, rollout: np.ndarray, how: bool | str) -> th.Tensor:
    if how == "rollout":  # As in OpenAI Baselines, with the population standard deviation.
        mean, std = rollout.mean().item(), rollout.std().item()
        return (minibatch - mean) / (std + 1e-8)
    return (minibatch - minibatch.mean()) / (minibatch.std() + 1e-8) if how else minibatch


def reference_update(model: PPOBase, surrogate: Surrogate, clip_range_vf: float | None) -> ActorCriticPolicy:
    """Return the policy as it should be after the model's next update."""
    policy, old_policy, buffer = deepcopy(model.policy), deepcopy(model.policy), deepcopy(model.rollout_buffer)
    for _ in range(model.n_epochs):
        for batch in buffer.get(model.batch_size):
            actions = batch.actions.long().flatten() if buffer.action_space.shape == () else batch.actions
            values, log_prob, entropy = policy.evaluate_actions(batch.observations, actions)
            assert entropy is not None
            with th.no_grad():
                old = deepcopy(old_policy.get_distribution(batch.observations))
            kl = kl_divergence(old, policy.get_distribution(batch.observations))
            kl = kl.sum(dim=1) if kl.ndim == 2 else kl
            advantages = normalised(batch.advantages, buffer.advantages, model.normalize_advantage)
            error = (values.flatten() - batch.returns) ** 2
            if clip_range_vf is not None:
                moved = (values.flatten() - batch.old_values).clip(-clip_range_vf, clip_range_vf)
                error = th.maximum(error, (batch.old_values + moved - batch.returns) ** 2)
            objective = surrogate(th.exp(log_prob - batch.old_log_prob), advantages, kl)
            loss = -objective - model.ent_coef * entropy.mean() + model.vf_coef * error.mean()
            policy.optimizer.zero_grad()
            loss.backward()
            if model.max_grad_norm is not None:
                th.nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            policy.optimizer.step()
    return policy


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("space", ACTION_SPACES)
@pytest.mark.parametrize("clip_range_vf", [None, 0.1])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("fast", [False, True])
def test_update_is_the_equations(fast: bool, name: str, clip_range_vf: float | None, space: str) -> None:
    cls, arguments, surrogate = CASES[name]
    shared = {"ent_coef": 0.01, "clip_range_vf": clip_range_vf, "fast": fast}
    model = collected(cls, ACTION_SPACES[space], **shared, **arguments)
    before = deepcopy(model.policy)
    state = np.random.get_state()
    expected = reference_update(model, surrogate, clip_range_vf)
    np.random.set_state(state)
    model.train()
    for new, wanted, old in zip(model.policy.parameters(), expected.parameters(), before.parameters(), strict=True):
        th.testing.assert_close(new, wanted, rtol=1e-4, atol=1e-6)
        assert (new - old).abs().max() > 1e-4


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("how", [True, False, "minibatch", "rollout"])
@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
@pytest.mark.parametrize("fast", [False, True])
def test_advantages_and_gradients_are_as_the_arguments_say(fast: bool, max_grad_norm: Any, how: Any) -> None:
    cls, arguments, surrogate = CASES["fixed and clip"]
    shared = {"normalize_advantage": how, "max_grad_norm": max_grad_norm, "fast": fast}
    # With a small epsilon, Adam would hide the length of the gradients.
    model = collected(cls, BOX, policy_kwargs={"optimizer_kwargs": {"eps": 1.0}}, **shared, **arguments)
    before = model.rollout_buffer.advantages.copy()
    state = np.random.get_state()
    expected = reference_update(model, surrogate, None)
    np.random.set_state(state)
    model.train()
    for new, wanted in zip(model.policy.parameters(), expected.parameters(), strict=True):
        th.testing.assert_close(new, wanted, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.sort(model.rollout_buffer.advantages, axis=None), np.sort(before, axis=None))


def test_advantages_over_a_rollout_by_hand() -> None:
    advantages = np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)  # Mean 3, variance (4 + 1 + 0 + 9) / 4.
    normalize = rollout_normalizer(advantages)
    assert normalize(th.tensor([6.0, 3.0])).tolist() == pytest.approx([3 / 3.5**0.5, 0.0])
    assert normalize(np.array([1.0])) == pytest.approx(-2 / 3.5**0.5)
