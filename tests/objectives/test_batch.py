"""What an objective may read of a minibatch: on both paths the same, and computed only when it is read."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch as th
from torch.distributions import Categorical, Normal, kl_divergence

from helpers import ACTION_SPACES, collect, noise_envs, small
from sb3_ppo_variants import Batch, Objective, PPOCustom
from sb3_ppo_variants.objectives import Clipped


class Reading(Clipped):
    """Keeps what it reads. As it has another loss than its base class, autograd differentiates it."""

    names: tuple[str, ...] = ()
    seen: ClassVar[list[dict[str, Any]]] = []

    def loss(self, batch: Batch) -> th.Tensor:
        self.seen.append({name: getattr(batch, name) for name in self.names})
        return super().loss(batch)


def reading(*names: str, needs_kl: bool = False) -> Any:
    made = type("Made", (Reading,), {"names": names, "seen": [], "needs_kl": needs_kl})
    return made(0.2)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_the_columns_of_the_rollout(fast: bool, policy: str) -> None:
    names = ("rows", "episodes", "observations", "actions", "old_values", "returns", "old_log_prob", "advantages")
    objective = reading(*names)
    settings: dict[str, Any] = {"n_steps": 18, "batch_size": 12, "n_epochs": 1, "normalize_advantage": False}
    model = collect(small(PPOCustom, policy=policy, objective=objective, fast=fast, **settings))
    model.train()
    buffer = model.rollout_buffer
    rows = np.concatenate([seen["rows"].numpy() for seen in objective.seen])
    assert sorted(rows) == [*range(36)]
    theirs = {"old_values": "values", "old_log_prob": "log_probs"}
    columns = {name: getattr(buffer, theirs.get(name, name)) for name in names[2:]}
    for name, column in columns.items():
        # SB3 flattens these arrays as it first reads the buffer; the fast path does not.
        flat = column if len(column) == 36 else column.swapaxes(0, 1).reshape(36, *column.shape[2:])
        found = np.concatenate([seen[name].numpy() for seen in objective.seen])
        np.testing.assert_array_equal(found, flat[rows].reshape(found.shape), err_msg=name)
    # Episodes of 7 steps: 7, 7 and 4 of them are in the rollout of each of two environments.
    of_rows = np.repeat(np.arange(6), [7, 7, 4, 7, 7, 4])
    found = np.concatenate([seen["episodes"].numpy() for seen in objective.seen])
    np.testing.assert_array_equal(found, of_rows[rows])


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("space", ["Box", "Discrete"])
def test_divergences_and_entropy(fast: bool, space: str) -> None:
    names = ("kl", "reverse_kl", "entropy", "log_prob", "actions", "parameters", "old_parameters")
    objective = reading(*names, needs_kl=True)
    env = noise_envs(ACTION_SPACES[space])
    model = collect(small(PPOCustom, env, objective=objective, fast=fast, learning_rate=0.01, n_epochs=3))
    model.train()
    seen = objective.seen[-1]
    old, new = (
        Normal(*seen[name]) if space == "Box" else Categorical(logits=seen[name][0])
        for name in ("old_parameters", "parameters")
    )
    summed: Any = (lambda x: x.sum(dim=1)) if space == "Box" else (lambda x: x)
    actions = seen["actions"] if space == "Box" else seen["actions"].flatten()
    wanted = {
        "kl": summed(kl_divergence(old, new)),
        "reverse_kl": summed(kl_divergence(new, old)),
        "entropy": summed(new.entropy()),
        "log_prob": summed(new.log_prob(actions)),
    }
    assert wanted["kl"].min() > 1e-5
    for name, value in wanted.items():
        th.testing.assert_close(seen[name].detach(), value.detach(), rtol=2e-3, atol=1e-5)


def test_what_is_not_read_is_not_computed() -> None:
    def fail(name: str) -> th.Tensor:
        raise AssertionError(f"{name} was computed")

    ratio, advantages = th.tensor([1.5, 0.9]), th.tensor([1.0, -1.0])
    # -(min(1.5, 1.2) - 0.9) / 2.
    batch = Batch(ratio, advantages, source=fail)
    assert Clipped(0.2).loss(batch).item() == pytest.approx(-0.15)


@dataclass(frozen=True)
class OfEpisodes(Objective):
    """Gives each sample the mean return of its episode as a weight."""

    calls: ClassVar[list[int]] = []
    needs_kl = True

    def loss(self, batch: Batch) -> th.Tensor:
        weights = batch.over_rollout(self.find_means)
        return (batch.ratio * weights.to(batch.ratio.dtype)).mean()

    def find_means(self, rollout: Batch) -> th.Tensor:
        self.calls.append(len(rollout.returns))
        assert rollout.old_parameters[0].shape == (32, 2)
        sums = rollout.episodes.bincount(rollout.returns)
        return (sums / rollout.episodes.bincount())[rollout.episodes]


@pytest.mark.parametrize("fast", [False, True])
def test_something_is_computed_for_the_whole_rollout_once(fast: bool) -> None:
    model = collect(small(PPOCustom, objective=OfEpisodes(), fast=fast, n_epochs=3, learning_rate=0.0))
    OfEpisodes.calls.clear()
    model.train()
    assert OfEpisodes.calls == [32]
    # The policy does not move, so the ratio is 1. Episodes have 7, 7 and 2 steps in each of two environments.
    returns = model.rollout_buffer.returns
    returns = returns.T.ravel() if len(returns) == 16 else returns.ravel()
    means = [chunk.mean() for chunk in np.split(returns, [7, 14, 16, 23, 30])]
    expected = np.repeat(means, [7, 7, 2, 7, 7, 2]).mean()
    assert model.logger.name_to_value["train/policy_gradient_loss"] == pytest.approx(expected, rel=1e-4)


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(TypeError, match="a batch has no 'ratios'; its fields are actions, advantages"):
        Batch(ratios=th.ones(1))
    batch: Any = Batch(th.ones(1), th.ones(1))
    with pytest.raises(AttributeError, match="a batch has no 'ratios'"):
        batch.ratios  # noqa: B018
    with pytest.raises(RuntimeError, match=r"reads batch.returns, which this batch does not have"):
        batch.returns  # noqa: B018
    for name in ("kl", "reverse_kl", "parameters"):
        with pytest.raises(RuntimeError, match=rf"reads batch.{name}, which .* have: set needs_kl = True"):
            getattr(batch, name)


@pytest.mark.parametrize("fast", [False, True])
def test_an_error_of_a_loss_undoes_the_update(fast: bool) -> None:
    model = collect(small(PPOCustom, objective=reading("kl"), fast=fast))
    before = [parameter.clone() for parameter in model.policy.parameters()]
    with pytest.raises(RuntimeError, match="set needs_kl = True"):
        model.train()
    assert all(map(th.equal, before, model.policy.parameters()))
