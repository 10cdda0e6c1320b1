"""Policies with parameters that are not trained."""

from copy import deepcopy
from typing import Any

import pytest
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy

from helpers import BOX, noise_envs
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
