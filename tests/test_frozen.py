"""Policies with parameters that are not trained."""

import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy

from helpers import BOX, noise_envs, small
from sb3_ppo_variants import ArgumentError, PPOClip, SeparateUpdates


class Frozen(ActorCriticPolicy):
    """A policy in which only the parameters with a part of these names are trained."""

    trained: tuple[str, ...]

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(any(part in name for part in self.trained))


class FrozenValues(Frozen):
    trained = ("policy_net", "action_net", "log_std")


class FrozenActions(Frozen):
    trained = ("value_net",)


@pytest.mark.parametrize(("policy", "outputs"), [(FrozenValues, "values"), (FrozenActions, "actions")])
def test_a_network_that_is_not_trained_is_refused(policy: Any, outputs: str) -> None:
    def frozen(updates: Any) -> Any:
        return PPOClip(policy, noise_envs(BOX), n_steps=8, batch_size=16, updates=updates)

    with pytest.raises(ArgumentError, match=f"but {outputs} depend on none"):
        frozen(SeparateUpdates())
    model = frozen(None)
    before = deepcopy(model.policy.state_dict())
    after = model.learn(16).policy.state_dict()
    changed = {name for name, weight in after.items() if not th.equal(before[name], weight)}
    assert changed == {name for name in before if any(part in name for part in policy.trained)}


def other_layer(policy: Any) -> None:
    policy.action_net = th.nn.Linear(64, 2)


def optimizer_of_others(policy: Any) -> None:
    policy.optimizer = th.optim.Adam(policy.value_net.parameters())
    policy.mlp_extractor.requires_grad_(False)


UNTRAINED = {
    other_layer: "action_net.weight, action_net.bias",
    optimizer_of_others: "log_std, action_net.weight, action_net.bias",
}


@pytest.mark.parametrize("change", UNTRAINED)
@pytest.mark.parametrize("fast", [False, "auto"])
def test_there_is_one_warning_of_parameters_that_no_optimizer_has(change: Any, fast: Any) -> None:
    model = small(fast=fast)
    change(model.policy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn(64).learn(32)
    (warning,) = caught
    assert f"no optimizer has the policy's parameters {UNTRAINED[change]}, so they are not" in str(warning.message)
