"""The native library computes updates of policies that explore with gSDE."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from test_fast_update import CASES, assert_same_update, collected

from helpers import BOX, assert_same_weights, small, update
from sb3_ppo_variants import PPOClip, PPOFixedKL, SeparateUpdates
from sb3_ppo_variants.backends.choice import choose
from sb3_ppo_variants.backends.native.backend import Native


def with_new_noise(model: Any) -> Any:
    """Replace the noise, because noise that requires gradients cannot be deep-copied."""
    with th.no_grad():
        model.policy.reset_noise()
    assert isinstance(choose(model._plan(), "auto").backend, Native)
    return model


@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("name", CASES)
def test_all_instructions_compute_the_same(name: str, double_precision: Callable[[Any], None]) -> None:
    cls, arguments = CASES[name]
    arguments = {"use_sde": True, "ent_coef": 0.02, "max_grad_norm": 0.5, **arguments}
    model = collected(cls, BOX, policy_kwargs={"net_arch": {"pi": [9, 17], "vf": [5]}, "log_std_init": -1}, **arguments)
    double_precision(model)
    assert_same_update(with_new_noise(model))


@pytest.mark.usefixtures("each_instruction_set")
def test_so_they_do_in_single_precision() -> None:
    model = with_new_noise(collected(PPOClip, BOX, use_sde=True, ent_coef=0.01))
    reference, fast = update(model, False), update(model, True)
    for wanted, got in zip(reference.policy.parameters(), fast.policy.parameters(), strict=True):
        th.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("batch_size", [128, 130, 200])
def test_minibatches_larger_than_the_states_at_a_time(batch_size: int, double_precision: Callable[[Any], None]) -> None:
    arguments: dict[str, Any] = {"use_sde": True, "kl_coef": 3.0, "ent_coef": 0.02, "n_epochs": 3}
    model = collected(PPOFixedKL, BOX, n_steps=88, **arguments)
    model.batch_size = batch_size
    double_precision(model)
    assert_same_update(with_new_noise(model))


@pytest.mark.usefixtures("natively")
def test_separate_updates(double_precision: Callable[[Any], None]) -> None:
    model = collected(PPOClip, BOX, use_sde=True, updates=SeparateUpdates(2, 3))
    double_precision(model)
    model = with_new_noise(model)
    reference, fast = update(model, False), update(model, True)
    th.testing.assert_close(fast.get_parameters(), reference.get_parameters(), rtol=1e-5, atol=1e-9)


OPTIONS: dict[str, dict[str, Any]] = {
    "one standard deviation for all dimensions": {"full_std": False},
    "expln": {"use_expln": True, "log_std_init": 0.1},
    "squashed": {"squash_output": True},
    "all": {"full_std": False, "use_expln": True, "squash_output": True},
    "no hidden layers": {"net_arch": {"pi": [], "vf": [8]}},
}


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("learn_features", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("case", ["clip", "fixed and clip"])
def test_options(case: str, name: str, learn_features: bool, double_precision: Callable[[Any], None]) -> None:
    cls, arguments = CASES[case]
    model = collected(cls, BOX, use_sde=True, ent_coef=0.02, policy_kwargs=OPTIONS[name], **arguments)
    model.policy.action_dist.learn_features = learn_features
    double_precision(model)
    assert_same_update(with_new_noise(model))


@pytest.mark.usefixtures("natively")
def test_another_epsilon(double_precision: Callable[[Any], None]) -> None:
    model = collected(PPOClip, BOX, use_sde=True, ent_coef=0.02)
    model.policy.action_dist.epsilon = 0.1
    double_precision(model)
    assert_same_update(with_new_noise(model))


def test_options_may_be_flags_of_numpy() -> None:
    models = []
    for true in (True, np.True_):
        model = small(use_sde=True, policy_kwargs={"use_expln": true}, fast=True)
        model.policy.action_dist.learn_features = true
        models.append(model.learn(64))
    assert_same_weights(*models)
