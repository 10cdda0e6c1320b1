"""Masked policies on the fast path: its updates match the reference path, which also evaluates its rollouts alike."""

from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import masked_model
from gymnasium import spaces
from masked_envs import MASKED_SPACES, MULTI
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy

from helpers import collect, with_old_parameters
from sb3_ppo_variants import (
    ArgumentError,
    PPOAdaptiveKL,
    PPOClip,
)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("space", MASKED_SPACES)
def test_the_reference_evaluates_a_rollout_alike(space: str, fast: bool) -> None:
    model = collect(masked_model(PPOAdaptiveKL, MASKED_SPACES[space], fast=fast))
    buffer = model.rollout_buffer
    ((samples, _, old_parameters),) = with_old_parameters(model, len(buffer.values) * buffer.n_envs)
    assert 0.3 < samples.action_masks.mean() < 0.9
    actions = samples.actions.long().flatten() if space == "Discrete" else samples.actions
    values, log_prob, _ = model.policy.evaluate_actions(samples.observations, actions, samples.action_masks)
    th.testing.assert_close(samples.old_log_prob, log_prob.detach(), rtol=1e-4, atol=1e-5)
    th.testing.assert_close(samples.old_values, values.flatten().detach(), rtol=1e-4, atol=1e-5)
    dist = model.policy.get_distribution(samples.observations, samples.action_masks)
    parts = [dist.distribution] if space == "Discrete" else dist.distributions
    for old, part in zip(old_parameters, parts, strict=True):
        th.testing.assert_close(old.exp(), part.probs.detach(), rtol=1e-4, atol=1e-6)


def test_actions_are_drawn_from_the_masked_distribution() -> None:
    """Compare the frequencies of actions in one state with one mask."""
    model = masked_model(PPOClip, spaces.Discrete(5), fast=True, policy_kwargs={"net_arch": []})
    mask, state = np.array([True, False, True, True, False]), np.full(3, 0.5, np.float32)
    for env in model.env.envs:
        env.action_masks = lambda: mask
        env.reset, env.step = lambda **_: (state, {}), lambda action: (state, 0.0, False, False, {})
    model.n_steps, model.rollout_buffer.buffer_size = 2000, 2000
    model.rollout_buffer.reset()
    with th.no_grad():
        model.policy.action_net.bias[:] = th.tensor([0.0, 3.0, 1.0, -1.0, 2.0])
    collect(model)
    drawn = np.bincount(model.rollout_buffer.actions.astype(int).ravel(), minlength=5) / 6000
    with th.no_grad():
        logits = model.policy.action_net(th.as_tensor(state)).numpy()
    expected = np.exp(logits) * mask / (np.exp(logits) * mask).sum()
    np.testing.assert_allclose(drawn, expected, atol=4 * 0.5 / 6000**0.5)
    assert drawn[1] == drawn[4] == 0


class Own(MaskableActorCriticPolicy):
    def evaluate_actions(self, obs: Any, actions: Any, action_masks: Any = None) -> Any:
        return super().evaluate_actions(obs, actions, action_masks)


def test_what_is_not_written_out_takes_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentError, match="Own overrides evaluate_actions"):
        masked_model(PPOClip, MULTI, Own, fast=True)
    masked_model(PPOAdaptiveKL, MULTI, Own, fast="auto", verbose=1).learn(1)
    assert "Training on the reference path: Own overrides" in capsys.readouterr().out
    masked_model(PPOClip, MULTI, fast="auto", verbose=1).learn(1)
    assert "Training on the fast path" in capsys.readouterr().out
