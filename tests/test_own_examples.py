"""The worked examples of objectives and of an own update, which the page about own objectives shows."""

from dataclasses import dataclass
from itertools import product
from math import log
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import assert_same_update, collected
from stable_baselines3 import PPO
from torch.nn import functional as F

from helpers import ACTION_SPACES, assert_same_policy, collect, small
from sb3_ppo_variants import Batch, NonFiniteError, Objective, PPOClip, PPOCustom, PPOUnclipped

# Objectives


# [sequences]
@dataclass(frozen=True)
class SequenceRatios(Objective):
    """Clips one ratio for each episode: the geometric mean of those of its samples."""

    clip_range: float = 0.2

    def loss(self, batch: Batch) -> th.Tensor:
        _, episode, length = batch.episodes.unique(return_inverse=True, return_counts=True)
        total = th.zeros(len(length)).to(batch.log_ratio).index_add(0, episode, batch.log_ratio)
        ratio = (total / length).exp()[episode]
        clipped = ratio.clamp(1 - self.clip_range, 1 + self.clip_range)
        return -th.min(ratio * batch.advantages, clipped * batch.advantages).mean()


# [per state]
@dataclass(frozen=True)
class PenaltyPerState(Objective):
    """Penalises the KL more in states whose value was estimated badly: beta is proportional to the error there."""

    needs_kl = True
    beta: float = 1.0

    def loss(self, batch: Batch) -> th.Tensor:
        error = (batch.returns - batch.old_values).abs()
        beta = self.beta * error / error.mean().clamp(min=1e-8)
        return (beta * batch.kl - batch.ratio * batch.advantages).mean()


# [renyi]
@dataclass(frozen=True)
class RenyiPenalty(Objective):
    """Penalises log(sum p^a q^(1-a)) / (a - 1) over the outcomes of a discrete action, where p is the old policy."""

    needs_kl = True
    order: float = 0.5
    beta: float = 1.0

    def loss(self, batch: Batch) -> th.Tensor:
        (old_logits,), (logits,) = batch.old_parameters, batch.parameters
        powers = self.order * old_logits.log_softmax(dim=1) + (1 - self.order) * logits.log_softmax(dim=1)
        renyi = powers.logsumexp(dim=1) / (self.order - 1)
        return (self.beta * renyi - batch.ratio * batch.advantages).mean()


# [end]


def test_one_ratio_for_each_episode() -> None:
    ratios = th.tensor([2.0, 1.1, 0.5, 0.6], dtype=th.float64)
    advantages, episodes = th.tensor([1.0, 1.0, 2.0, -1.0], dtype=th.float64), th.tensor([3, 7, 3, 7])
    ratios.requires_grad_()
    loss = SequenceRatios(0.2).loss(Batch(ratios, advantages, episodes=episodes))
    # sqrt(2 * 0.5) = 1 in episode 3. In episode 7, sqrt(1.1 * 0.6) = 0.812.
    of_7 = (1.1 * 0.6) ** 0.5
    assert loss.item() == pytest.approx(-(1.0 + of_7 + 2.0 - of_7) / 4)
    loss.backward()
    # In episode 3, the derivative of the ratio is 1 / (2 r) in each of both samples, and the advantages add up to 3.
    assert ratios.grad is not None
    np.testing.assert_allclose(ratios.grad[[0, 2]], [-3 / 4 / (2 * 2.0), -3 / 4 / (2 * 0.5)])


def test_a_penalty_in_proportion_to_the_error() -> None:
    batch: Any = Batch(
        th.tensor([1.0, 2.0]), th.tensor([3.0, 1.0]), th.tensor([0.1, 0.4]),
        returns=th.tensor([1.0, -2.0]), old_values=th.tensor([0.0, 1.0]),
    )  # fmt: skip
    # The errors 1 and 3 have the mean 2: (0.5 * 2 * 0.1 - 3 + 1.5 * 2 * 0.4 - 2) / 2.
    assert PenaltyPerState(2.0).loss(batch).item() == pytest.approx((0.1 - 3 + 1.2 - 2) / 2)


def test_a_renyi_penalty_by_hand() -> None:
    old, new = (th.tensor([probabilities]).log() for probabilities in ([0.5, 0.5], [0.25, 0.75]))
    batch = Batch(th.tensor([1.0]), th.tensor([2.0]), old_parameters=(old,), parameters=(new,))
    # log(0.25 / 0.25 + 0.25 / 0.75)
    assert RenyiPenalty(order=2.0, beta=0.5).loss(batch).item() == pytest.approx(0.5 * log(4 / 3) - 2.0)


EXAMPLES: dict[str, Objective] = {
    "sequences": SequenceRatios(),
    "per state": PenaltyPerState(),
    "renyi": RenyiPenalty(),
}


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize(
    ("name", "space"),
    [*product(["sequences", "per state"], ["Box", "Discrete", "MultiDiscrete"]), ("renyi", "Discrete")],
)
def test_examples_train_the_same_on_both_paths(name: str, space: str, double_precision: Any) -> None:
    model = collected(PPOCustom, ACTION_SPACES[space], objective=EXAMPLES[name])
    double_precision(model)
    assert_same_update(model)


# An own update


# [train]
class Averaged(PPOUnclipped):
    """Takes one gradient step for each pass, with the gradient of the whole rollout."""

    def train(self) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)  # SB3's: the step size of now
        for _ in range(self.n_epochs):
            for samples in self.rollout_buffer.get():
                values, log_prob, _ = self.policy.evaluate_actions(samples.observations, samples.actions)
                ratio = (log_prob - samples.old_log_prob).exp()
                value_loss = F.mse_loss(values.flatten(), samples.returns)
                loss = self.vf_coef * value_loss - (ratio * samples.advantages).mean()
                if not loss.isfinite():
                    raise NonFiniteError("loss", f"not finite: {loss.item()}")
                self.policy.optimizer.zero_grad()
                loss.backward()
                self.policy.optimizer.step()
        self._n_updates += self.n_epochs
        self.logger.record("train/loss", loss.item())


# [end]


class LikeSB3(PPOClip):
    """Has SB3's update."""

    train = PPO.train


def test_an_own_update_with_rollouts_as_in_sb3() -> None:
    assert_same_policy(small(LikeSB3, fast=False).learn(64), small(PPO).learn(64))


def test_one_step_for_each_pass() -> None:
    model = collect(small(Averaged, n_epochs=3))
    model.train()
    (steps,) = {int(moments["step"]) for moments in model.policy.optimizer.state_dict()["state"].values()}
    assert steps == 3 == model._n_updates
    assert not {"train/kl", "train/approx_kl"} & model.logger.name_to_value.keys()
