"""On its reference path, PPOClip matches SB3's PPO bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from parity import OBSERVED, ModeDependent, Traces, train
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize
from torch.distributions import Categorical

from helpers import ACTION_SPACES, BOX, IMAGE, assert_same_weights, noise_envs, small
from sb3_ppo_variants import MissingKLError, PPOClip, PPOFixedKL
from sb3_ppo_variants.policies.kind import without_traces


class DroppingBuffer(RolloutBuffer):
    """A user's buffer that yields only the first minibatch of every pass."""

    def get(self, batch_size: int | None = None) -> Any:
        yield next(super().get(batch_size))


class OwnForward(ActorCriticPolicy):
    """A policy whose KL has to be computed anew, because nobody knows what its method leaves behind."""

    def forward(self, obs: Any, deterministic: bool = False) -> Any:
        return super().forward(obs, deterministic)


def case(action_space: spaces.Space = BOX, **arguments: Any) -> dict[str, Any]:
    return {"make_env": lambda: noise_envs(action_space), **arguments}


CASES: dict[str, dict[str, Any]] = {
    **{name: case(space) for name, space in ACTION_SPACES.items()},
    "CnnPolicy": case(make_env=lambda: noise_envs(BOX, IMAGE), policy="CnnPolicy"),
    "MultiInputPolicy": case(make_env=lambda: noise_envs(BOX, OBSERVED), policy="MultiInputPolicy"),
    "gSDE": case(use_sde=True, sde_sample_freq=4),
    "squashed gSDE": case(use_sde=True, policy_kwargs={"squash_output": True}),
    "separate features": case(
        make_env=lambda: noise_envs(BOX, IMAGE), policy="CnnPolicy", policy_kwargs={"share_features_extractor": False}
    ),
    "target_kl": case(target_kl=1e-4, learning_rate=1e-3),
    "schedules": case(learning_rate=LinearSchedule(1e-3, 0, 1.0), clip_range=LinearSchedule(0.01, 0, 1.0)),
    "overshoot": case(total_timesteps=100, learning_rate=lambda progress: 1e-3 + 1e-3 * progress),
    "truncated minibatch": case(batch_size=21),
    "minibatch of one": case(batch_size=63),
    "raw advantages": case(normalize_advantage=False),
    "entropy": case(ent_coef=0.1, vf_coef=0.25, max_grad_norm=0.1),
    "relu": case(policy_kwargs={"activation_fn": th.nn.ReLU, "net_arch": [16], "optimizer_class": th.optim.SGD}),
    "batch norm and dropout": case(policy_kwargs={"features_extractor_class": ModeDependent}),
    "traces": case(policy_kwargs={"features_extractor_class": Traces}),
    "traces of an own policy": case(policy=OwnForward, policy_kwargs={"features_extractor_class": Traces}),
    "VecNormalize": case(make_env=lambda: VecNormalize(noise_envs(BOX))),
    "own buffer": case(rollout_buffer_class=DroppingBuffer),
}


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


def test_what_computes_without_traces_leaves_none_after_an_error() -> None:
    policy: Any = small(policy_kwargs={"features_extractor_class": Traces}).policy
    state = th.random.get_rng_state()
    with pytest.raises(MissingKLError), without_traces(policy):
        policy.get_distribution(th.zeros(1, 3))
        assert policy.features_extractor.seen == 1
        raise MissingKLError
    assert policy.features_extractor.seen == 0 and th.equal(th.random.get_rng_state(), state)


class Bare(BasePolicy):
    """A policy with only the methods that SB3's PPO calls."""

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, use_sde: bool = False):
        super().__init__(observation_space, action_space)
        self.actor, self.critic = th.nn.Linear(3, 3), th.nn.Linear(3, 1)
        self.optimizer = th.optim.Adam(self.parameters(), lr=lr_schedule(1))

    _of: Any = OwnNetworks._of
    forward, evaluate_actions = OwnNetworks.forward, OwnNetworks.evaluate_actions
    predict_values = OwnNetworks.predict_values

    def _predict(self, observation: Any, deterministic: bool = False) -> th.Tensor:
        return self._of(observation).probs.argmax(dim=1)


def test_a_policy_without_get_distribution() -> None:
    bare: Any = Bare
    own: Any = case(ACTION_SPACES["Discrete"], policy=bare)
    assert_same_weights(train(PPOClip, **own)[0], train(PPO, **own)[0])
    with pytest.raises(MissingKLError, match=r"Bare has a forward .* write get_distribution too"):
        PPOFixedKL(bare, noise_envs(ACTION_SPACES["Discrete"]))


def test_the_cases_train() -> None:
    """The other tests would be meaningless if weights never changed."""
    model: Any = train(PPOClip, **case())[0]
    untrained: Any = PPOClip("MlpPolicy", noise_envs(BOX), seed=5, device="cpu")
    assert not th.equal(model.policy.action_net.weight, untrained.policy.action_net.weight)


def test_target_kl_ends_updates_early() -> None:
    model, _ = train(PPOClip, **CASES["target_kl"])
    assert model._n_updates < 2 * 3


def test_same_random_state_after_training() -> None:
    states = []
    paths: list[tuple[type[OnPolicyAlgorithm], dict[str, Any]]] = [(PPO, {}), (PPOClip, {"fast": False})]
    for cls, own in paths:
        train(cls, **own, **case())
        numpy_state: Any = np.random.get_state()
        states.append((th.random.get_rng_state().tolist(), numpy_state[1].tolist()))
    assert states[0] == states[1]
