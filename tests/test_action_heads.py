"""Distributions of continuous actions in all kinds of policies: those of PyTorch, of what a plain loop computes."""

from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import DISCRETE, masked_envs
from recurrence import SMALL, ragged_envs
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecMonitor
from test_asymmetric import KEYS, SPACE
from test_hybrid import KICK
from torch import nn
from torch.distributions import AffineTransform, Beta, Independent, Normal, TanhTransform, TransformedDistribution
from torch.distributions.kl import kl_divergence

from helpers import BOX, DICT, IMAGE, VARIANTS, assert_same_policy, noise_envs, small
from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.policies.head import BoxActions

NAMES: dict[str, dict[str, Any]] = {
    "beta": {"distribution": "beta"},
    "squashed": {"distribution": "squashed_gaussian"},
    "state": {"std": "state"},
}
GRU = {**SMALL, "memory": "gru"}
# The policy, its observations and its other arguments.
POLICIES: dict[str, tuple[str, spaces.Space, dict[str, Any]]] = {
    "LSTM": ("MlpLstmPolicy", BOX, SMALL),
    "GRU": ("MlpLstmPolicy", BOX, GRU),
    "keys": ("MultiInputPolicy", SPACE, {**KEYS, "net_arch": [8]}),
    "LSTM and keys": ("MultiInputLstmPolicy", SPACE, {**KEYS, **SMALL}),
    "images": ("CnnLstmPolicy", IMAGE, SMALL),
    "dictionaries": ("MultiInputLstmPolicy", DICT, GRU),
}
WIDE = spaces.Box(np.array([-1, 2], np.float32), np.array([1, 5], np.float32))


def made(of: str, drawn: dict[str, Any], cls: Any = PPOClip, actions: spaces.Space = WIDE, **arguments: Any) -> Any:
    policy, observations, kwargs = POLICIES[of]
    env = VecMonitor(ragged_envs(actions, observations))
    return small(cls, env, policy, policy_kwargs={**kwargs, **drawn}, **arguments)


def looped(memory: nn.RNNBase, observations: np.ndarray, starts: np.ndarray) -> th.Tensor:
    """Return the outputs of an LSTM or a GRU, which begins each episode with zeros, in the order of the rows."""
    plain = (nn.GRU if isinstance(memory, nn.GRU) else nn.LSTM)(memory.input_size, memory.hidden_size)
    plain.load_state_dict(memory.state_dict())
    edges = [*np.flatnonzero(starts), len(starts)]
    return th.cat([plain(th.as_tensor(observations[start:end]))[0] for start, end in pairwise(edges)])


def from_pytorch(name: str, outputs: th.Tensor, policy: Any) -> tuple[Any, Any]:
    """Return PyTorch's distributions of what the policy draws, and those before they are squashed or scaled."""
    first, second = outputs.chunk(2, dim=1) if name != "squashed" else (outputs, policy.log_std)
    if name == "beta":
        inner: Any = Beta(1 + nn.functional.softplus(first), 1 + nn.functional.softplus(second))
        drawn: Any = TransformedDistribution(inner, AffineTransform(-1.0, 2.0))
    else:
        inner = Normal(first, second.exp())
        drawn = TransformedDistribution(inner, TanhTransform()) if name == "squashed" else inner
    return Independent(drawn, 1), Independent(inner, 1)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("memory", ["LSTM", "GRU"])
@pytest.mark.parametrize("cls", VARIANTS)
@pytest.mark.parametrize("name", NAMES)
def test_rollouts_and_their_kl_are_those_of_a_plain_loop(name: str, cls: Any, memory: str, fast: bool) -> None:
    model = made(memory, NAMES[name], cls, fast=fast, learning_rate=1e-2)
    before, buffer = deepcopy(model.policy), model.rollout_buffer
    model.learn(48)
    rows = {key: buffer.__dict__[key].reshape(48, -1) for key in ("observations", "actions", "log_probs")}
    starts = buffer.episode_starts.reshape(3, -1)
    assert 3 < starts.sum() < 48
    found = []
    for policy in (before, model.policy):
        with th.no_grad():
            latent = looped(policy.lstm_actor, rows["observations"], starts.ravel())
            found.append(from_pytorch(name, policy.action_net(policy.mlp_extractor.policy_net(latent)), policy))
    (old, old_inner), (_, new_inner) = found
    th.testing.assert_close(
        th.as_tensor(rows["log_probs"]).flatten(), old.log_prob(th.as_tensor(rows["actions"])), rtol=1e-4, atol=1e-4
    )
    kl = kl_divergence(old_inner, new_inner).mean().item()
    assert kl > 1e-4
    assert model.logger.name_to_value["train/kl"] == pytest.approx(kl, rel=1e-3)


@pytest.mark.parametrize("of", POLICIES)
def test_the_default_is_the_gaussian_of_the_policy(of: str) -> None:
    wanted, got = (made(of, drawn, fast=False).learn(48) for drawn in ({}, {"distribution": "gaussian"}))
    assert_same_policy(got, wanted)


def test_hybrid_actions_of_an_asymmetric_policy_with_a_memory() -> None:
    model = made("LSTM and keys", NAMES["beta"], actions=KICK, fast=True).learn(48)
    assert KICK.contains(model.predict(model.observation_space.sample())[0])
    assert model.logger.name_to_value["train/kl"] > 0


class Own(ActorCriticPolicy):
    """A policy of a user, whose own arguments have the names of those of distributions."""

    def __init__(self, *args: Any, std: int = 0, only_if: str = "", **kwargs: Any):
        self.own = std, only_if
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "std": self.own[0], "only_if": self.own[1]}


def test_arguments_that_a_policy_declares_are_its_own(tmp_path: Path) -> None:
    kwargs = {"std": 7, "only_if": "mine", "log_std_init": -1.0}
    policy = small(env=noise_envs(BOX), policy=Own, policy_kwargs=kwargs).learn(32).policy
    policy.save(tmp_path / "policy")
    for each in (policy, type(policy).load(tmp_path / "policy"), deepcopy(policy)):
        assert each.own == (7, "mine") and each.log_std_init == -1.0


class Plain(BoxActions, ActorCriticPolicy):
    """A policy of a user that has a head already."""


def test_policies_of_the_user_with_a_head() -> None:
    model = small(policy=Plain, policy_kwargs=NAMES["beta"]).learn(32)
    assert type(model.policy) is Plain and type(deepcopy(model.policy)) is Plain and model.policy.squash_output


class Stubborn(ActorCriticPolicy):
    """A policy of a user with its own distribution."""

    def _build(self, lr_schedule: Any) -> None:
        self.action_dist = DiagGaussianDistribution(2)
        super()._build(lr_schedule)


class StubbornBox(BoxActions, Stubborn):
    pass


REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (noise_envs(BOX), Stubborn, {"std": "state"}, r"\['std'\] needs a policy .* class Mine\(BoxActions, Stubborn\)"),
    (
        noise_envs(BOX),
        StubbornBox,
        {"std": "state"},
        "has no effect on a Stubborn, which makes a DiagGaussian",
    ),
    (masked_envs(DISCRETE), "MaskableMlpPolicy", {"std": "state"}, "needs a Box action space, .* Discrete"),
    (ragged_envs(DISCRETE), "MlpLstmPolicy", NAMES["beta"], r"distribution=Beta\(\) needs a Box action space"),
    (ragged_envs(), "MlpLstmPolicy", {"distribution": "cauchy"}, r"\['distribution'\]='cauchy' is not allowed"),
    (noise_envs(KICK), Plain, NAMES["beta"], "needs a Box action space, but the environment has Dict"),
]


@pytest.mark.parametrize(("env", "policy", "kwargs", "message"), REFUSED)
def test_what_does_not_fit_is_refused(env: Any, policy: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small(env=env, policy=policy, policy_kwargs=kwargs)
