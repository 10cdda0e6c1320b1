"""The native library draws from, evaluates and differentiates products of distributions as PyTorch does."""

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from resuming import exact
from test_fast_distributions import Everything
from test_fast_images import updated
from test_fast_rollout import assert_records_the_policy, rolled_out
from test_fast_update import CASES, assert_same_update, collected
from test_hybrid import KICK, NESTED

from helpers import noise_envs, small, update
from sb3_ppo_variants import (
    ApproximateKL,
    ArgumentError,
    Batch,
    Objective,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    PPOFixedKL,
    SeparateUpdates,
)
from sb3_ppo_variants.backends.choice import choose
from sb3_ppo_variants.distributions import StateGaussianDistribution
from sb3_ppo_variants.hybrid import HybridDistribution
from sb3_ppo_variants.objectives import EWMA, KLPenalized

pytestmark = pytest.mark.usefixtures("natively")
FORCE = spaces.Box(-1, 1, (2,), np.float32)
MOVE_OR_KICK = spaces.Dict({"choice": spaces.Discrete(2), "kick": FORCE, "move": FORCE})
FOUR = spaces.Tuple([FORCE, spaces.Discrete(3), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 4])])
# The choice comes last.
CONDITIONAL = spaces.Dict(
    {"arm": FORCE, "buttons": spaces.MultiBinary(2), "dials": spaces.MultiDiscrete([2, 4]), "tool": spaces.Discrete(4)}
)
# For each space, arguments of the distribution.
ACTIONS: dict[str, tuple[spaces.Space, dict[str, Any]]] = {
    "move or kick": (MOVE_OR_KICK, {"only_if": {"move": ("choice", 0), "kick": ("choice", 1)}}),
    "four parts": (FOUR, {}),
    "nested": (NESTED, {"entropy_weights": {"0": 0.0, "1.exact": 2.0, "3": -0.5}}),
    "conditional": (
        CONDITIONAL,
        {
            "only_if": {"arm": ("tool", [0, 2]), "buttons": ("tool", 3), "dials": ("tool", [1, 2, 3])},
            "entropy_weights": {"arm": 0.5, "tool": 3.0},
        },
    ),
    "one choice": (spaces.Tuple([spaces.Discrete(3)]), {"entropy_weights": {"0": 2.0}}),
}


def made(cls: Any, name: str, policy_kwargs: Any = None, **arguments: Any) -> Any:
    """Return a model with these actions and a full buffer."""
    space, of_parts = ACTIONS[name]
    return collected(cls, space, policy_kwargs={**of_parts, **(policy_kwargs or {})}, **arguments)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("ent_coef", [0.0, 0.02])
@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("name", CASES)
def test_updates(name: str, actions: str, ent_coef: float, double_precision: Callable[[Any], None]) -> None:
    cls, arguments = CASES[name]
    model = made(cls, actions, ent_coef=ent_coef, **arguments)
    double_precision(model)
    assert_same_update(model)


def assert_close(fast: Any, reference: Any) -> None:
    for got, wanted in zip(fast.policy.parameters(), reference.policy.parameters(), strict=True):
        assert got.dtype == th.float32
        th.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("actions", ACTIONS)
def test_all_instructions_compute_the_same(actions: str) -> None:
    model = made(PPOFixedKL, actions, kl_coef=3.0, ent_coef=0.02)
    assert_close(update(model, True), update(model, False))


class BothKLs(Objective):
    """Reads what is known of all distributions with ``only_if``: the Renyi divergence is not."""

    needs_kl = True

    def loss(self, batch: Batch) -> th.Tensor:
        penalty = batch.kl + 0.5 * batch.reverse_kl - 0.01 * batch.entropy
        spread = sum(each.square().mean() for each in batch.parameters)
        return (penalty - batch.ratio * batch.advantages).mean() + 0.1 * spread


@pytest.mark.sampled(2)
@pytest.mark.parametrize("actions", ACTIONS)
def test_own_objectives(actions: str, double_precision: Callable[[Any], None]) -> None:
    objective = BothKLs() if "only_if" in ACTIONS[actions][1] else Everything()
    model = made(PPOCustom, actions, objective=objective)
    double_precision(model)
    assert_same_update(model)


@pytest.mark.parametrize("actions", ACTIONS)
def test_separate_updates_and_stops(actions: str, double_precision: Callable[[Any], None]) -> None:
    arguments: dict[str, Any] = {
        "updates": SeparateUpdates(policy_epochs=2, value_epochs=2),
        "stop": ApproximateKL(0.02),
    }
    model = made(PPOClip, actions, {"activation_fn": th.nn.ReLU, "net_arch": [8]}, **arguments)
    double_precision(model)
    assert_same_update(model)


@pytest.mark.parametrize("actions", ["nested", "conditional"])
def test_moving_averages(actions: str, double_precision: Callable[[Any], None]) -> None:
    model = made(PPOCustom, actions, objective=EWMA(KLPenalized(kl_coef=1.0, clip_range=0.2), 0.9))
    double_precision(model)
    model.proximal_policy.double()
    assert_same_update(model)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("actions", ACTIONS)
def test_rollouts_are_those_of_the_policy(actions: str, n_envs: int) -> None:
    space, of_parts = ACTIONS[actions]
    model = rolled_out(noise_envs(space, n_envs=n_envs), fast=True, n_rollouts=2, policy_kwargs=of_parts)
    assert_records_the_policy(model)


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
    space, of_parts = ACTIONS["conditional"]
    exact(cls, lambda: noise_envs(space), tmp_path, fast=True, policy_kwargs=of_parts)


def test_images() -> None:
    reference, fast = (updated(PPOFixedKL, fast, KICK, ent_coef=0.02, batch_size=20) for fast in (False, True))
    assert choose(fast._plan(), True).backend.name == "images"
    assert_close(fast, reference)


def test_memory() -> None:
    model = collected(PPOFixedKL, KICK, policy="MlpLstmPolicy", n_epochs=2, ent_coef=0.02)
    assert choose(model._plan(), True).backend.name == "sequences"
    assert_close(update(model, True), update(model, False))


class OwnDistribution(HybridDistribution):
    """Might draw other actions."""


def own_class(distribution: Any) -> None:
    distribution.__class__ = OwnDistribution


def other_part(distribution: Any) -> None:
    distribution.parts[1] = StateGaussianDistribution(2)


def own_method(distribution: Any) -> None:
    distribution.parts[0].entropy = lambda: 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (own_class, "actions are drawn from a OwnDistribution"),
        (other_part, "a part of the actions is drawn from a StateGaussianDistribution"),
        (own_method, "the distribution has its own entropy"),
    ],
)
def test_what_the_library_does_not_compute(change: Callable[[Any], None], why: str) -> None:
    model = small(env=noise_envs(KICK))
    assert choose(model._plan(), "auto").backend.name == "native"
    change(model.policy.action_dist)
    assert choose(model._plan(), "auto").why == why
    with pytest.raises(ArgumentError, match=why):
        choose(model._plan(), True)


def test_a_standard_deviation_that_changes_during_the_rollout() -> None:
    model = collected(PPOFixedKL, KICK)
    model.old_policy.parameters[2][3:] *= 2
    assert choose(model._plan(), "auto").why == "the standard deviation changed during the rollout"


def test_unknown_actions_are_refused() -> None:
    model = collected(PPOClip, CONDITIONAL)
    model.rollout_buffer.actions[0, 0, -1] = 4
    model.fast = True
    with pytest.raises(IndexError, match="actions that the policy does not have"):
        model.train()
