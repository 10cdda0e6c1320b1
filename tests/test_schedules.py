"""Schedules follow the remaining progress to the end."""

from math import sqrt
from typing import Any

import pytest
from stable_baselines3.common.utils import LinearSchedule

from helpers import BOX, LogRecorder, noise_envs
from sb3_ppo_variants import ArgumentError, PPOClip, PPOFixedKL


def updates(cls: Any = PPOFixedKL, total_timesteps: int = 256, **arguments: Any) -> list[dict[str, Any]]:
    log = LogRecorder()
    model = cls("MlpPolicy", noise_envs(BOX), n_steps=32, n_epochs=1, **arguments)
    model.learn(total_timesteps, callback=log)
    return log.updates


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "clip_range_vf", "kl_coef"])
def test_linear_to_zero(name: str) -> None:
    arguments: dict[str, Any] = {name: LinearSchedule(0.4, 0.0, 1.0)}
    logs = updates(**arguments)
    assert [log[f"train/{name}"] for log in logs] == pytest.approx([0.3, 0.2, 0.1, 0.0])


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "clip_range_vf", "kl_coef"])
def test_a_number_stays(name: str) -> None:
    arguments: dict[str, Any] = {name: 0.4}
    assert [log[f"train/{name}"] for log in updates(**arguments)] == [0.4] * 4


def test_a_proportional_schedule_ends_at_zero_if_the_last_rollout_overshoots() -> None:
    logs = updates(PPOClip, total_timesteps=200, learning_rate=lambda progress: 0.4 * progress)
    assert [log["train/learning_rate"] for log in logs] == pytest.approx([0.4 * p for p in (0.68, 0.36, 0.04, 0.0)])


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "clip_range_vf", "kl_coef"])
def test_a_schedule_may_be_undefined_where_the_last_rollout_overshoots(name: str) -> None:
    arguments: dict[str, Any] = {name: lambda progress: 0.4 * sqrt(progress)}
    logs = updates(total_timesteps=200, **arguments)
    assert [log[f"train/{name}"] for log in logs] == pytest.approx([0.4 * sqrt(p) for p in (0.68, 0.36, 0.04, 0.0)])


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "clip_range_vf", "kl_coef"])
@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf"), "fast", None])
def test_a_bad_value_is_refused_by_name_at_the_update_that_meets_it(name: str, bad: float) -> None:
    log = LogRecorder()
    arguments: dict[str, Any] = {name: lambda progress: 0.1 if progress > 0.4 else bad}
    model = PPOFixedKL("MlpPolicy", noise_envs(BOX), n_steps=32, **arguments)
    with pytest.raises(ArgumentError, match=rf"^{name}\(0.25\)={bad!r} is not allowed"):
        model.learn(256, callback=log)
    # The two updates before it were completed.
    assert model._n_updates == 20


def test_a_learning_rate_that_is_bad_from_the_start_is_refused_at_construction() -> None:
    with pytest.raises(ArgumentError, match=r"^learning_rate\(1\)=-0.1 is not allowed"):
        PPOClip("MlpPolicy", "CartPole-v1", learning_rate=lambda progress: -0.1)


def test_learning_rate_reaches_the_optimizer() -> None:
    model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=32, learning_rate=LinearSchedule(0.4, 0.1, 1.0)).learn(128)
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
