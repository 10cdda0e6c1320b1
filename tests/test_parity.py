"""On its reference path, PPOClip matches SB3's PPO bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch as th
from parity import CASES, case, train
from stable_baselines3 import PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from torch.distributions import Categorical

from helpers import ACTION_SPACES, assert_same_weights, noise_envs
from sb3_ppo_variants import MissingKLError, PPOClip, PPOFixedKL


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", CASES)
def test_same_weights_and_logs_as_sb3(name: str) -> None:
    theirs, their_log = train(PPO, **CASES[name])
    ours, our_log = train(PPOClip, fast=False, **CASES[name])
    assert_same_weights(ours, theirs)
    assert len(our_log) == len(their_log) == 2
    for their_values, our_values in zip(their_log, our_log, strict=True):
        train_keys = {key for key in their_values if not key.startswith("time/")}
        assert set(our_values) - set(their_values) == {"train/kl"}
        for key in train_keys:
            assert our_values[key] == pytest.approx(their_values[key], rel=1e-5, abs=1e-7, nan_ok=True), key


class OwnNetworks(ActorCriticPolicy):
    """A policy with networks of its own, and only the methods that SB3's PPO calls."""

    def _build(self, lr_schedule: Any) -> None:
        self.actor, self.critic = th.nn.Linear(3, 3), th.nn.Linear(3, 1)
        self.optimizer = th.optim.Adam(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _of(self, obs: Any) -> Categorical:
        return Categorical(logits=self.actor(obs))

    def forward(self, obs: Any, deterministic: bool = False) -> Any:
        actions = self._of(obs).sample()
        return actions, self.critic(obs), self._of(obs).log_prob(actions)

    def evaluate_actions(self, obs: Any, actions: th.Tensor) -> Any:
        return self.critic(obs), self._of(obs).log_prob(actions), self._of(obs).entropy()

    def predict_values(self, obs: Any) -> th.Tensor:
        return self.critic(obs)


def test_a_policy_with_networks_of_its_own() -> None:
    own: Any = case(ACTION_SPACES["Discrete"], policy=OwnNetworks)
    theirs, _ = train(PPO, **own)
    ours, log = train(PPOClip, **own)
    assert_same_weights(ours, theirs)
    assert "train/kl" not in log[-1]
    with pytest.raises(MissingKLError, match=r"OwnNetworks has a forward .* write get_distribution too"):
        PPOFixedKL(OwnNetworks, noise_envs(ACTION_SPACES["Discrete"]))


def test_same_random_state_after_training() -> None:
    states = []
    paths: list[tuple[type[OnPolicyAlgorithm], dict[str, Any]]] = [(PPO, {}), (PPOClip, {"fast": False})]
    for cls, own in paths:
        train(cls, **own, **case())
        numpy_state: Any = np.random.get_state()
        states.append((th.random.get_rng_state().tolist(), numpy_state[1].tolist()))
    assert states[0] == states[1]
