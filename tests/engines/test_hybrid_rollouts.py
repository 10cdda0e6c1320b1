"""Rollouts of the native library with hybrid actions, and those that it does not compute."""

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from engine_models import FOUR, HYBRID, collected, rolled_out
from resuming import exact
from test_hybrid import KICK

from helpers import noise_envs, small
from sb3_ppo_variants import (
    ArgumentError,
    PPOAdaptiveKL,
    PPOClip,
    PPOFixedKL,
)
from sb3_ppo_variants.distributions import StateGaussianDistribution
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.hybrid import HybridDistribution

pytestmark = pytest.mark.usefixtures("natively")


def test_samples() -> None:
    """Standardised actions have mean 0, variance 1 and no correlations, over all parts and from state to state."""
    model = rolled_out(noise_envs(FOUR, n_envs=3), fast=True, n_steps=2000)
    actions = model.rollout_buffer.actions.swapaxes(0, 1).reshape(-1, 7).astype(float)
    mean, std, choice, buttons, *dials = (each.numpy() for each in model.old_policy.parameters)
    columns = [*((actions[:, :2] - mean) / std).T]
    taken = [(actions[:, 2] == i, np.exp(choice[:, i])) for i in range(2)]
    taken += [(actions[:, 3 + i], 1 / (1 + np.exp(-buttons[:, i]))) for i in range(2)]
    taken += [
        (actions[:, 5 + i] == k, np.exp(dial[:, k])) for i, dial in enumerate(dials) for k in range(dial.shape[1] - 1)
    ]
    columns += [(each - p) / np.sqrt(p * (1 - p)) for each, p in taken]
    numbers = np.array([*columns, np.roll(columns[0], 1), np.roll(columns[2], 1)])
    for i, j in combinations_with_replacement(range(len(numbers)), 2):
        products = numbers[i] * numbers[j]
        if {i, j} not in ({2, 3}, {7, 8}, {7, 9}, {8, 9}):  # Categories of the same part exclude each other.
            assert abs(products.mean() - (i == j)) < 5 * products.std() / np.sqrt(len(actions)), (i, j)
    assert (np.abs(numbers.mean(axis=1)) < 5 / np.sqrt(len(actions))).all()


@pytest.mark.parametrize("cls", [PPOClip, PPOAdaptiveKL])
def test_runs_resume_exactly(cls: Any, tmp_path: Any) -> None:
    space, of_parts = HYBRID["conditional"]
    exact(cls, lambda: noise_envs(space), tmp_path, fast=True, policy_kwargs=of_parts)


class OwnDistribution(HybridDistribution):
    """Might draw other actions."""


def own_class(distribution: Any) -> None:
    distribution.__class__ = OwnDistribution


def other_part(distribution: Any) -> None:
    distribution.parts[1] = StateGaussianDistribution(2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (own_class, "actions are drawn from a OwnDistribution"),
        (other_part, "a part of the actions is drawn from a StateGaussianDistribution"),
    ],
)
def test_what_the_library_does_not_compute(change: Callable[[Any], None], why: str) -> None:
    model = small(env=noise_envs(KICK))
    assert choose(model._plan(), "auto").engine.name == "native"
    change(model.policy.action_dist)
    assert choose(model._plan(), "auto").why == why
    with pytest.raises(ArgumentError, match=why):
        choose(model._plan(), True)


def test_a_standard_deviation_that_changes_during_the_rollout() -> None:
    model = collected(PPOFixedKL, KICK)
    model.old_policy.parameters[2][3:] *= 2
    assert choose(model._plan(), "auto").why == "the standard deviation changed during the rollout"
