"""The value losses: their numbers, SB3's clipping bit for bit, both paths, and what is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch as th
from engine_models import collected
from stable_baselines3 import PPO

from helpers import BOX, assert_same_policy, noise_envs, save, update
from sb3_ppo_variants import ArgumentError, ClippedError, Huber, PPOClip, SquaredError, ValueLoss

Double = Callable[[Any], None]
VALUES, OLD_VALUES, RETURNS = th.tensor([1.0, 3.0, -1.0]), th.tensor([0.0, 2.8, 0.0]), th.tensor([2.0, 0.0, -0.5])


@pytest.mark.parametrize(
    ("loss", "each", "slopes"),
    [
        # The errors are -1, 3 and -0.5.
        (SquaredError(), [1.0, 9.0, 0.25], [-2.0, 6.0, -1.0]),
        # The clipped values are 0.5, 3 and -0.5, whose errors are -1.5, 3 and 0.
        (ClippedError(0.5), [2.25, 9.0, 0.25], [0.0, 6.0, -1.0]),
        (ClippedError(0.5, pessimistic=False), [2.25, 9.0, 0.0], [0.0, 6.0, 0.0]),
        # Beyond 2: 2 * 2 * 3 - 4.
        (Huber(2.0), [1.0, 8.0, 0.25], [-2.0, 4.0, -1.0]),
    ],
)
def test_numbers(loss: ValueLoss, each: list[float], slopes: list[float]) -> None:
    values = VALUES.clone().requires_grad_()
    mean = loss.loss(values, OLD_VALUES, RETURNS)
    mean.backward()
    assert mean.item() == pytest.approx(sum(each) / 3)
    assert values.grad is not None and (values.grad * 3).tolist() == pytest.approx(slopes)


def test_without_the_maximum_it_is_sb3s_bit_for_bit() -> None:
    def trained(cls: Any, **arguments: Any) -> Any:
        settings: dict[str, Any] = dict(n_steps=32, batch_size=16, n_epochs=3, learning_rate=3e-3, seed=1)
        return cls("MlpPolicy", noise_envs(BOX), **settings, **arguments, device="cpu").learn(192)

    theirs = trained(PPO, clip_range_vf=0.05)
    ours = trained(PPOClip, value_loss=ClippedError(0.05, pessimistic=False), fast=False)
    assert_same_policy(ours, theirs)
    with pytest.raises(AssertionError):  # The range has an effect.
        assert_same_policy(ours, trained(PPO))


@pytest.mark.parametrize("fast", [False, True])
def test_clip_range_vf_means_the_pessimistic_one(fast: bool) -> None:
    model = collected(PPOClip, BOX, clip_range_vf=0.05)
    wanted = update(model, fast)
    model.clip_range_vf, model.value_loss = None, ClippedError(0.05)
    ours = update(model, fast)
    assert_same_policy(ours, wanted)
    assert ours.logger.name_to_value["train/clip_range_vf"] == 0.05


@dataclass(frozen=True)
class Absolute(ValueLoss):
    """E[|V - R|], and the returned value of another shape if there is a mistake."""

    mistaken: bool = False

    def loss(self, values: th.Tensor, old_values: th.Tensor, returns: th.Tensor) -> th.Tensor:
        errors = (values - returns).abs()
        return errors if self.mistaken else errors.mean()


@pytest.mark.parametrize("fast", [False, True])
def test_your_own(fast: bool) -> None:
    model = collected(PPOClip, BOX, value_loss=Absolute())
    model.fast = fast
    with th.no_grad():
        values = model.policy.predict_values(th.as_tensor(model.rollout_buffer.observations.reshape(-1, 3))).flatten()
    first = (values - th.as_tensor(model.rollout_buffer.returns.flatten())).abs().mean().item()
    model.n_epochs, model.batch_size = 1, 60
    model.train()
    assert model.logger.name_to_value["train/value_loss"] == pytest.approx(first)
    assert PPOClip.load(save(model)).value_loss == Absolute()


@pytest.mark.parametrize("fast", [False, True])
def test_a_loss_that_is_no_scalar_is_refused(fast: bool) -> None:
    model = collected(PPOClip, BOX, value_loss=Absolute(mistaken=True))
    model.fast = fast
    with pytest.raises(ArgumentError, match=r"^Absolute.loss returned a tensor of shape \(12,\); allowed: a scalar"):
        model.train()


@pytest.mark.parametrize("value", [3, "Huber(1.0)", Huber, True])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^value_loss=.* is not allowed; allowed: SquaredError"):
        PPOClip("MlpPolicy", noise_envs(BOX), value_loss=value)


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (Huber, {"delta": 0}),
        (Huber, {"delta": "1"}),
        (ClippedError, {"clip_range": -1}),
        (ClippedError, {"clip_range": None}),
    ],
)
def test_their_arguments_are_checked(cls: Any, arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(ArgumentError, match=rf"^{name}={arguments[name]!r} is not allowed"):
        cls(**arguments)


def test_both_are_refused_at_construction() -> None:
    with pytest.raises(ArgumentError, match=r"^value_loss=Huber\(delta=1.0\) and clip_range_vf=0.2 are two"):
        PPOClip("MlpPolicy", noise_envs(BOX), value_loss=Huber(1.0), clip_range_vf=0.2)
